"""Whether a model's tables fit, in which format and where, and what a batch costs then."""

from ngram_ple.planning.estimate import Machine, Option, Plan, make_plan
from ngram_ple.planning.rates import SHIPPED, Rates, read_rates

__all__ = ["SHIPPED", "Machine", "Option", "Plan", "Rates", "make_plan", "read_rates"]
