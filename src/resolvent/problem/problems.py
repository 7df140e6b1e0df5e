"""Problems: the parties' objectives, from data and a model or in closed form, and maps of their parameters."""

from resolvent.problem.instances import least_squares, logistic_data, logistic_regression
from resolvent.problem.maps import GradientStep
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import LearningProblem, Problem, QuadraticProblem, SolvedProblem
from resolvent.problem.subproblem import Subproblem

__all__ = ["GradientStep", "LearningProblem", "Oracle", "Problem", "QuadraticProblem", "SolvedProblem", "Subproblem",
           "least_squares", "logistic_data", "logistic_regression"]
