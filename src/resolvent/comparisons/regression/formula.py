"""Formulas such as ``outcome ~ age + C(ward) + age:sex``: what they may contain, and the design that follows.

formulaic builds the columns. It evaluates factors as Python, and a formula can come from the lead of a federation, so a
formula is checked before anything is computed, and its cost is bounded. It may contain

- names of columns, numbers, ``+ - * / :``, ``C()`` and the functions of ``FUNCTIONS``; no comparison, and no ``abs``,
  whose kink would let a column mark the rows on one side of a number;
- splines with stated knots and orthogonal polynomials of a column, see ``bases``;
- powers of a column whose exponent is a written number from -3 to 3, not zero. A power of a number is written as a
  number;
- functions and powers in functions and powers to a depth of two; no power of a power, nor root of a power, which are
  ``abs`` in other words;
- at most 200 terms, and 200 columns with the levels of the categories.

The numbers in a formula are parameters that somebody has chosen: a site counts them with the coefficients.
"""

import ast
import math
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.bases import EXAMPLES, Basis, functions, read_basis
from resolvent.errors import InputError, alternatives, quote

if TYPE_CHECKING:
    import pandas as pd

FUNCTIONS = {"log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "exp": np.exp, "sqrt": np.sqrt}
MAX_COLUMNS = 200
_NORMAL = (1.0, 0.0, 1.0, 0.0, 3.0, 0.0, 15.0)  # moments, where only the names of columns count
_MAX_LENGTH, _MAX_DEPTH, _MAX_POWER = 10_000, 2, 3
_NODES = (ast.Expression, ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Call, ast.Add, ast.Sub,
          ast.Mult, ast.Div, ast.Pow, ast.UAdd, ast.USub)
_INSTEAD = {  # what formulas of R, patsy and lme4 have (a pattern), and what to write here
    r"\^": "write ** for a power: I(age**2), or (a + b)**2 for the products of columns",
    r"\|": "leave the bar out: site='random' in Python, site: random in a file, or --set regression.site=random fits a "
    "random intercept for each site",
    r"(?<![\w.])\.(?![\w.])": "name the columns, such as ill ~ age + ward: there is no . for all of them",
    r"\boffset\s*\(": "name the column in a setting: offset='risk' in Python, offset: risk in a file, or "
    "--set regression.offset=risk; for offset(log(years)) set exposure: years",
    r"\b(as\.)?factor\s*\(": "write C(ward) for a category",
    r"\bas\.\w+\s*\(": "write the column alone, or C(ward) for a category",
    **dict.fromkeys((r"\b(relevel|Treatment|Sum|contr\.\w+)\s*\(", r"\bC\([^()]*,"),
                    "write the column or C(ward), and name the base level in a setting: reference={'ward': 'B'} in "
                    "Python, reference: {ward: B} in a file, or --set regression.reference.ward=B"),
    r"\bstrata\s*\(": "leave strata() out: a Cox model has a baseline hazard of its own for each site, whose column "
    "party= names; for further strata name their column in a setting: strata='ward' in Python, strata: ward in a file, "
    "or --set regression.strata=ward",
    r"\bcluster\s*\(": "leave cluster() out, and write errors='clustered' for errors clustered by site, with "
    "cluster='patient' for those clustered by a column",
    r"\b(np|numpy|math)\.\w+\s*\(": "write the function alone, such as log(age)",
    r"\bQ\s*\(": "write the name of a column between backticks: `crp (mg)`",
    r"\b(lm|glm|lmer|glmer|coxph|clm|polr)\s*\(": "write the formula inside alone, such as Surv(days, died) ~ age: the "
    "setting family says the rest",
    r"\bcbind\s*\(": "write one label: a row of the table for each trial, with 0 or 1",
    **dict.fromkeys((r"\b(ifelse|cut|case_when)\s*\(", r"[<>]"),
                    "write the condition into a column of the table, such as older with 0 and 1"),
    r"\b(scale|center|standardize|zscore)\s*\(": "write the column alone, or I((age - 60) / 10): columns are centred "
    "and scaled while they are fitted, and estimates are in the table's units",
    r"%in%": "write the product, such as ward:age",
    r"\b(ns|rcs|s)\s*\(": f"write a natural cubic spline with stated knots, such as {EXAMPLES['cr']}",
}
_SIGNS = str.maketrans("\u223c\uff5e\u2212\u2013\u00a0\n\r\t", "~~--    ")  # of a text program, and between lines
_QUOTED = re.compile(r"`[^`]*`")
_NAME_WITH_DOTS = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:\.\w+)+(?![\w.]|\s*\()")  # such as crp.mg
_COLUMN = r"\s*(`[^`]+`\s*|[^\s(),`=<>][^(),`=<>]*)"  # one way to match a text: blanks would take cubic time otherwise
_SURVIVAL = re.compile(rf"Surv\({_COLUMN},{_COLUMN}(?:,{_COLUMN})?\)")


@dataclass(frozen=True)
class Response:
    """The left side of a formula.

    Attributes:
        label: the column of the label; for times, the column of the time.
        event: the column that says whether the event occurred; None if the label is no time.
        entry: for times, the column of the time at which observation begins; None: from the beginning.
    """

    label: str
    event: str | None = None
    entry: str | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that it reads, that of the event last."""
        return [name for name in (self.label, self.entry, self.event) if name is not None]


@dataclass(frozen=True)
class Formula:
    """A formula that has been checked.

    Attributes:
        response: its left side.
        variables: the columns of the right side.
        categories: those in ``C()``.
        constants: the numbers that its factors contain, exponents aside.
        bases: factor -> the spline or polynomial that it is.
    """

    text: str
    response: Response
    right: Any
    variables: tuple[str, ...]
    categories: frozenset[str]
    constants: frozenset[float] = frozenset()
    bases: Mapping[str, Basis] = field(default_factory=dict)

    @property
    def degrees(self) -> dict[str, int]:
        """Column of polynomials -> their largest degree."""
        found: dict[str, int] = {}
        for basis in self.bases.values():
            if basis.function == "poly":
                found[basis.column] = max(basis.width, found.get(basis.column, 0))
        return found

    def short(self, name: str) -> str:
        """The name of a term or column with ``bs(age)`` instead of ``bs(age, knots=[40, 60], ...)``, if it is one."""
        names = [f"{basis.function}({basis.column})" for basis in self.bases.values()]
        for expression, written in zip(self.bases, names, strict=True):
            if names.count(written) == 1:
                name = name.replace(expression, written)
        return name

    def count_columns(self, levels: Mapping[str, Sequence[str]]) -> int:
        """An upper bound of the number of columns.

        Args:
            levels: column of categories -> its levels.
        """
        def count(expression: str) -> int:
            if expression in self.bases:
                return self.bases[expression].width
            return len(levels.get(re.sub(r"^C\((.*)\)$", r"\1", expression).strip("`"), ("",)))

        return sum(math.prod(count(factor.expr) for factor in term.factors) for term in self.right)


class Design(NamedTuple):
    """The columns of a regression.

    Attributes:
        names: [d] the names of the columns.
        x: [rows, d] the columns.
    """

    names: tuple[str, ...]
    x: NDArray[np.float64]


def parse_formula(text: str) -> Formula:
    """The formula, checked.

    Args:
        text: such as ``outcome ~ age + C(ward) + age:sex``, or ``Surv(days, died) ~ age`` for times to an event;
            ``Surv(start, stop, died)`` for rows that are at risk from start to stop.

    Example:
        >>> parse_formula("outcome ~ age + log(income)").variables  # doctest: +SKIP
        ('age', 'income')
    """
    formulaic = _formulaic()
    if len(text) > _MAX_LENGTH:
        raise InputError(f"the formula has {len(text)} characters: it may have {_MAX_LENGTH}")
    written = _in_our_words(text)
    outside = _QUOTED.sub(lambda name: " " * len(name[0]), written)  # a ~ between backticks is part of a name
    left, right = written[:outside.find("~")], written[outside.find("~") + 1:]
    if outside.count("~") != 1 or not left.strip() or not right.strip():
        raise InputError(f"the formula {quote(text)} needs a label and one right side: write such as "
                         "outcome ~ age + C(ward)")
    # formulaic takes these for numbers
    if taken := re.search(r"`\s*[\d.]*\s*`|(?<![\w`])Intercept(?![\w`])|`Intercept`", right):
        raise InputError(f"the formula {quote(text)} names the column {quote(taken[0].strip('` '))}, which in a "
                         "formula is the constant term: give the column another name")
    _check_terms(right, text)
    try:
        parsed = formulaic.Formula(right.strip())
        terms = list(parsed)
    except formulaic.errors.FormulaicError as error:
        raise InputError(f"the formula {quote(text)} cannot be read: {_one_line(error)}") from error
    except (TypeError, SyntaxError, AttributeError, RecursionError, MemoryError) as error:
        raise InputError(f"the formula {quote(text)} cannot be read: use + : * ( ) and C(column), and "
                         "backticks around other names") from error
    factors = [factor for term in terms for factor in term.factors]
    variables: dict[str, None] = {}
    categories, numbers = set[str](), set[str]()  # in C(), and in other calls and arithmetic
    constants, bases = set[float](), dict[str, Basis]()
    for factor in factors:
        if factor.eval_method.value == "lookup":
            variables[factor.expr] = None
        elif factor.eval_method.value == "python":
            columns, is_category = _check_factor(factor.expr, text, constants, bases)
            variables.update(dict.fromkeys(columns))
            (categories if is_category else numbers).update(columns)
    numbers |= {factor.expr for factor in factors if factor.eval_method.value == "lookup"}
    if both := sorted(categories & numbers):
        raise InputError(f"{quote(both[0])} is a category in C() and a number elsewhere in {quote(text)}: make a copy "
                         "of the column in the table")
    return Formula(text, _response(left.strip()), parsed, tuple(variables), frozenset(categories), frozenset(constants),
                   bases)


def design_of(formula: Formula, frame: "pd.DataFrame", moments: Mapping[str, Sequence[float]] | None = None) -> Design:
    """The columns of the right side.

    Args:
        frame: rows without missing values; text columns are categories, whose first level is the base.
        moments: column of polynomials -> its moments over the rows of all sites.
    """
    formulaic = _formulaic()
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # values that are not finite are named below
            matrix = formula.right.get_model_matrix(frame, context={**FUNCTIONS, **functions(moments or {})},
                                                    na_action="ignore")
    except formulaic.errors.FormulaicError as error:
        raise InputError(f"the formula {quote(formula.text)} does not fit the table: {_one_line(error)}") from error
    names, x = tuple(formula.short(str(name)) for name in matrix.columns), np.asarray(matrix, np.float64)
    if not names:
        raise InputError(f"the formula {quote(formula.text)} has no columns on its right side")
    for j, name in enumerate(names):
        if not np.isfinite(x[:, j]).all():
            row = int(np.flatnonzero(~np.isfinite(x[:, j]))[0])
            advice = ("its value is beyond lower_bound or upper_bound: state wider bounds" if "bs(" in name else
                      "transform the column before")
            raise InputError(f"{quote(name)} is not finite in row {row} of the complete rows: {advice}, or leave such "
                             "rows out")
    return Design(names, x)


def columns_of_terms(formula: Formula, levels: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Term of the right side -> the names of its columns; they follow from the levels alone.

    Args:
        levels: column of categories -> its levels, base first.
    """
    import pandas as pd

    row = pd.DataFrame({name: pd.Categorical([levels[name][0]], categories=[*levels[name]]) if name in levels else [1.0]
                        for name in formula.variables}, index=[0])
    context = {**FUNCTIONS, **functions(dict.fromkeys(formula.degrees, _NORMAL))}
    with np.errstate(all="ignore"):
        matrix = formula.right.get_model_matrix(row, context=context, na_action="ignore")
    names, terms = [formula.short(str(name)) for name in matrix.columns], matrix.model_spec.term_indices
    return {formula.short(str(term)): [names[j] for j in positions] for term, positions in terms.items()}


def check_columns(formula: Formula, columns: Iterable[str], others: Iterable[str]) -> None:
    """Refuse columns that the table does not have, and the column of the site on the right side.

    Args:
        others: columns that must not be features.
    """
    known = list(columns)
    for name in [*formula.response.columns, *formula.variables]:
        if name not in known:
            raise InputError(f"the formula {quote(formula.text)} names the column {quote(name)}, which the table does "
                             f"not have{alternatives(name, known)}")
    for name in [*formula.response.columns, *others]:
        if name in formula.variables:
            raise InputError(f"{quote(name)} is the label or names the site, and cannot be on the right side of "
                             f"{quote(formula.text)} as well: site='fixed' fits an intercept for each site, and "
                             "heterogeneity() compares the sites")


def _in_our_words(text: str) -> str:
    """The formula with backticks around names with dots, such as crp.mg; refuses what only other programs have."""
    between = re.split(f"({_QUOTED.pattern})", text)  # every second part is a name in backticks
    for pattern, advice in _INSTEAD.items():
        for part in between[::2]:
            if found := re.search(pattern, part):
                written = found[0].rstrip("( ") + "()" * found[0].endswith("(")
                raise InputError(f"{quote(written)} in the formula {quote(text)}: {advice}")
    return "".join(part if i % 2 else _NAME_WITH_DOTS.sub(r"`\g<0>`", part.translate(_SIGNS))
                   for i, part in enumerate(between))


def _check_terms(right: str, text: str) -> None:
    """Refuse too many terms, from the text alone, and ``age**2`` outside I().

    That is a product of categories: formulas of R and patsy read it as ``age``.
    """
    rest = _without_calls(_QUOTED.sub("name", right))
    if re.search(r"\w\s*\*\*", rest):
        raise InputError(f"the formula {quote(text)} has a power outside I(), which means products of columns: write "
                         "I(age**2)")
    rest = re.sub(r"[^\W\d]\w*", "name", rest).replace(":", "@")  # of the same precedence in Python as *
    try:
        count = _count_terms(ast.parse(rest.strip(), mode="eval").body, text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise InputError(f"the formula {quote(text)} cannot be read: use + : * ( ) and C(column), and "
                         "backticks around other names") from error
    if count > MAX_COLUMNS:
        raise InputError(f"the formula {quote(text)} has more than {MAX_COLUMNS} terms: leave some out")


def _count_terms(node: ast.expr, text: str) -> int:
    """An upper bound of the number of terms at every step of the expansion of a part, more than any of its parts has.

    The parts a and b of m and n terms have m + n terms as a + b, m n as a:b, m + n + m n as a*b; and (a)**k has the
    products of up to k of its m terms, sum_{j=1}^{k} C(m, j).
    """
    if isinstance(node, ast.UnaryOp):
        return _count_terms(node.operand, text)
    if not isinstance(node, ast.BinOp):
        return 1
    m = _count_terms(node.left, text)
    if isinstance(node.op, ast.Pow):
        power = node.right.value if isinstance(node.right, ast.Constant) else None
        if type(power) is not int or not 1 <= power <= _MAX_POWER:
            raise InputError(f"the formula {quote(text)} has a power of terms whose exponent is not a number from 1 "
                             f"to {_MAX_POWER}: write the products that you need, such as a:b")
        return sum(math.comb(m, j) for j in range(1, power + 1))
    n = _count_terms(node.right, text)
    if isinstance(node.op, ast.Add | ast.Sub):
        return m + n
    return m * n if isinstance(node.op, ast.MatMult) else m + n + m * n


def _without_calls(text: str) -> str:
    """The text with a name instead of every call of a function, whatever is between its parentheses."""
    kept, inside = "", [False]  # for each open parenthesis, whether it is of a call or in one
    for sign in text:
        if sign == "(":
            inside.append(inside[-1] or bool(re.match(r"\w", kept[-1:])))
        kept += "" if inside[-1] else sign
        if sign == ")" and len(inside) > 1:
            inside.pop()
    return kept


def _response(left: str) -> Response:
    if survival := _SURVIVAL.fullmatch(left):
        *entry, label, event = (name.strip().strip("`") for name in survival.groups() if name is not None)
        return Response(label, event, *entry)
    if not re.fullmatch(r"`[^`]+`|\w+", left):
        coded = (", or name the column of the event alone, and its value of no event in a setting, such as "
                 "reference: {status: alive}" if "Surv" in left else "")
        raise InputError(f"the left side of a formula is a column, Surv(time, event) or Surv(start, stop, event), "
                         f"got {quote(left)}: transform the label in the table{coded}")
    return Response(left.strip("`"))


def _check_factor(expression: str, text: str, constants: set[float],
                  bases: dict[str, Basis]) -> tuple[list[str], bool]:
    """The columns of a factor, and whether it is a category: ``C(column)``; adds the numbers in it to ``constants``.

    Args:
        bases: gets the factor if it is a spline or a polynomial.
    """
    columns: list[str] = []
    quoted = [name[1:-1] for name in _QUOTED.findall(expression)]
    plain = _QUOTED.sub(lambda m: f"quoted_{quoted.index(m[0][1:-1])}", expression)
    try:
        tree = ast.parse(plain, mode="eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise InputError(f"{quote(expression)} in the formula {quote(text)} cannot be read") from error

    def column_of(name: ast.Name) -> str:
        match = re.fullmatch(r"quoted_(\d+)", name.id)
        return quoted[int(match[1])] if match else name.id

    call = tree.body
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in EXAMPLES:
        if not call.args or not isinstance(call.args[0], ast.Name):
            raise InputError(f"{quote(expression)} in the formula {quote(text)}: {call.func.id}() is of one column: "
                             "make its transformation a column of the table")
        try:
            bases[expression] = basis = read_basis(call, column_of(call.args[0]))
        except InputError as error:
            raise InputError(f"{quote(expression)} in the formula {quote(text)}: {error}") from error
        constants.update(basis.constants)
        return [basis.column], False
    calls = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.Name) and id(node) in calls
        allowed = not isinstance(node, ast.Call) or isinstance(node.func, ast.Name)
        if not isinstance(node, _NODES) or not allowed or (
                is_function and isinstance(node, ast.Name) and node.id not in {"C", "I", *FUNCTIONS}) or (
                isinstance(node, ast.Constant) and type(node.value) not in (int, float)) or (
                isinstance(node, ast.Call) and (node.keywords or len(node.args) != 1)):
            part = (node.id if isinstance(node, ast.Name) else type(node).__name__
                    if isinstance(node, ast.operator | ast.unaryop | ast.cmpop | ast.boolop) else ast.unparse(node))
            raise InputError(f"{quote(expression)} in the formula {quote(text)} contains {quote(part)}: a formula "
                             f"may contain columns, numbers, arithmetic, C(), I(), {', '.join(FUNCTIONS)}, "
                             "and of a column bs(), cr() and poly(); functions that estimate something from rows "
                             "would need the rows of all sites")
        if isinstance(node, ast.Name) and not is_function:
            columns.append(column_of(node))
    has_category = any(isinstance(node.func, ast.Name) and node.func.id == "C"
                       for node in ast.walk(tree) if isinstance(node, ast.Call))
    if has_category and not _is_plain_category(tree.body):
        raise InputError(f"{quote(expression)} in the formula {quote(text)}: C() has the name of one column, such as "
                         "C(ward)")
    if reason := _too_steep(tree.body, 0):
        raise InputError(f"{quote(expression)} in the formula {quote(text)}: {reason}")
    exponents = {id(part) for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
                 for part in ast.walk(node.right)}
    constants.update(number for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in exponents
                     if (number := _number(node)) is not None)
    return columns, has_category


def _too_steep(node: ast.AST, depth: int) -> str:
    """Why a factor may not be computed; empty if it may.

    Args:
        depth: number of functions and powers around the node.
    """
    is_power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
    is_function = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in ("C", "I")
    if isinstance(node, ast.BinOp) and is_power:
        if not any(isinstance(part, ast.Name) for part in ast.walk(node.left)):
            return f"{quote(ast.unparse(node))} is a power of a number: write its value"
        exponent = _number(node.right)
        if exponent is None or not 0 < abs(exponent) <= _MAX_POWER:
            return (f"{quote(ast.unparse(node))} has an exponent that is not a written number from -{_MAX_POWER} to "
                    f"{_MAX_POWER}: write such as age**2")
        if _holds_power(node.left):
            return f"{quote(ast.unparse(node))} is a power of a power: write one power"
    if isinstance(node, ast.Call) and is_function and node.func.id == "sqrt" and _holds_power(node.args[0]):  # type: ignore[attr-defined]
        return f"{quote(ast.unparse(node))} is a root of a power: write the power"
    depth += is_power or is_function
    if depth > _MAX_DEPTH:
        return f"functions and powers are nested deeper than {_MAX_DEPTH}: make the column in the table"
    return next((reason for child in ast.iter_child_nodes(node) if (reason := _too_steep(child, depth))), "")


def _holds_power(node: ast.AST) -> bool:
    """Whether there is a power in an expression, also as a product of an expression with itself."""
    return any(isinstance(part, ast.BinOp) and (isinstance(part.op, ast.Pow) or (
        isinstance(part.op, ast.Mult | ast.Div) and all(any(isinstance(name, ast.Name) for name in ast.walk(side))
                                                        for side in (part.left, part.right))))
               for part in ast.walk(node))


def _number(node: ast.expr) -> float | None:
    """A written number, with a sign if it has one; otherwise None."""
    is_negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    value = node.operand if isinstance(node, ast.UnaryOp) else node
    if not isinstance(value, ast.Constant) or isinstance(value.value, bool) or not isinstance(value.value, int | float):
        return None
    size = float(value.value) if value.value < sys.float_info.max else math.inf  # of an integer of any length
    return -size if is_negative else size


def _is_plain_category(node: ast.expr) -> bool:
    return (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "C"
            and len(node.args) == 1 and isinstance(node.args[0], ast.Name) and not node.keywords)


def _one_line(error: Exception) -> str:
    return re.sub(r"\x1b\[[0-9;]*m|[⧛⧚]", "", " ".join(str(error).split()))[:300]


def _formulaic() -> Any:
    try:
        import formulaic
        import formulaic.errors
    except ImportError as error:
        raise InputError("formulas need the package formulaic: pip install 'resolvent[statistics]'") from error
    return formulaic
