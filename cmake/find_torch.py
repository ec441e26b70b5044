"""Print one line of JSON, {"version", "include", "lib"}, for the torch of the running interpreter.

Used by setup.py and CMake. Reads torch's files without importing it, which would take seconds.
Prints `null` when there is no torch.
"""

import importlib.util
import json
import runpy
from pathlib import Path

spec = importlib.util.find_spec("torch")
if spec is None or spec.origin is None:
    print("null")
else:
    root = Path(spec.origin).parent
    version = runpy.run_path(str(root / "version.py"))["__version__"]
    print(json.dumps({"version": str(version), "include": str(root / "include"), "lib": str(root / "lib")}))
