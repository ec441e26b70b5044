"""The documentation site: `make docs` writes it to build/docs."""

import ngram_ple

project = "ngram_ple"
version = release = ngram_ple.build_info()["version"]
copyright = "the ngram_ple authors, Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "ngram_ple"
default_role = "literal"  # single backticks in docstrings are names
myst_heading_anchors = 3
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
