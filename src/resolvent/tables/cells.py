"""What the cells of a table mean: numbers, true/false, texts and missing values, alike in every file, frame and site.

A column is one of numbers, of true/false, of dates or of text. Text that could be meant as numbers is refused with the
setting that decides, because a category for each number gives a wrong model in silence.
"""

import contextlib
import decimal
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from resolvent.data.samples import check_name
from resolvent.errors import InputError, quote, shorten

if TYPE_CHECKING:
    import pandas as pd

# Cells that stand for a missing value in any column, unless a column has a list of its own. pandas has the same list.
MISSING_WORDS = frozenset({
    "", "NA", "na", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>", "NaN", "nan", "-NaN", "-nan", "NULL", "null",
    "None", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"})
ALL_COLUMNS = "*"  # the key of the missing codes of all columns
Code: TypeAlias = str | float
Codes: TypeAlias = list[Code]

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE)
_WHOLE = re.compile(r"[+-]?\d+")
LEADING_ZERO = re.compile(r"[0\u0660\u06f0\u0966\uff10]\d+([.,]\d*)?")
GROUPS = r"_.,'\u2019\u00a0\u2009\u202f"  # signs that separate thousands, beside a blank
_ANY_NUMBER = rf"[+-]?\d[\d{GROUPS} ]*"
_START, _END = re.compile(rf"\(?{_ANY_NUMBER}"), re.compile(rf"\d[\d{GROUPS} ]*$")
_UNIT = (r"(kg|g|mg|µg|μg|ug|ng|pg|lbs?|oz|km|cm|mm|m|in|ft|l|dl|ml|µl|μl|ul|fl|[mµμun]?mol|m?eq|[mk]?iu|i\.?e\.?|"
         r"[mk]?u|units?|tabs?|tbl|mmhg|kpa|bpm|h|hrs?|hours?|min|minutes?|s|sec|seconds?|d|days?|weeks?|months?|y|yrs?|"
         r"years?|jahre?|monate?|wochen?|tage?|stunden?|ans?|mois|jours?|años?|°c|°f|kcal|kj|m2|m²|cells|"
         r"k|tsd|mio|mln|mrd|bn|thousand|million)")
_UNITS = rf"({_UNIT}(/{_UNIT}){{0,2}}|/{_UNIT})"
_CURRENCIES = r"[€$£¥₹₽₩₺]|eur|usd|chf|gbp"
# A cell that is a number with something around it: what it is -> its form, and what to do.
_EACH = "make a column of each number"
_ALONE = "write the number alone, and the unit in the name of the column"
_DECORATED = {
    "numbers with commas or separators of thousands": (
        re.compile(rf"[+-]?(\d{{1,3}}([{GROUPS} ]\d{{3}})+([.,]\d+)?|\d{{1,2}}(,\d\d)+,\d{{3}}|"
                   r"\d*[,\u00b7\u066b]\d+)([eE][+-]?\d+)?"),
        "write all with a decimal point and nothing else"),
    "numbers with a sign of percent": (
        re.compile(rf"{_ANY_NUMBER}\s*([%‰]|pct|percent|prozent)", re.IGNORECASE), _ALONE),
    "numbers with a currency": (re.compile(
        rf"({_CURRENCIES})\s*{_ANY_NUMBER}|{_ANY_NUMBER}\s*({_CURRENCIES})", re.IGNORECASE), _ALONE),
    "numbers with a unit": (re.compile(rf"({_ANY_NUMBER}\s*{_UNITS}\s*){{1,3}}(\d+)?", re.IGNORECASE), _ALONE),
    "feet and inches": (re.compile(r"\d+\s*['’′]\s*(\d+(\.\d+)?\s*(\"|”|″|''|′′)?)?"),
                        "write one number, such as the inches"),
    "durations": (
        re.compile(r"P(?=[\dT])(\d+([.,]\d+)?[YMWD])*(T(\d+([.,]\d+)?[HMS])+)?|(\d+ days?,? )?\d{1,3}(:[0-5]\d){1,2}",
                   re.IGNORECASE), "write the number of one unit, such as minutes"),
    "numbers that are about right": (
        re.compile(rf"([~≈Øø]|(ca|circa|about|approx)\.?)\s*{_ANY_NUMBER}", re.IGNORECASE), "write the number alone"),
    "numbers with their errors": (
        re.compile(rf"{_ANY_NUMBER}\s*((±|\+/-)\s*{_ANY_NUMBER}|\({_ANY_NUMBER}\))"), _EACH),
    "fractions or powers": (
        re.compile(rf"({_ANY_NUMBER})?\s*[½¼¾⅓⅔⅛]|{_ANY_NUMBER}(\s*[x×·*]\s*10)?\^[+-]?\d+", re.IGNORECASE),
        "write decimal numbers, such as 1.5 or 2e6"),
    "numbers with a sign that is not the minus of a keyboard": (
        re.compile(rf"([\u2212\u2012-\u2015\ufe63\uff0d]\s*|-\s+){_ANY_NUMBER}|\(\s*{_ANY_NUMBER}\)|{_ANY_NUMBER}-"),
        "write - before them"),
    "numbers in quotes": (re.compile(rf"=?[\"'\u2018\u2019\u201c\u201d]{_ANY_NUMBER}[\"'\u2018\u2019\u201c\u201d]?"),
                          "write the number alone"),
    "numbers of base 16 or 2": (re.compile(r"0x[\da-f]+|0b[01]+", re.IGNORECASE), "write them in base 10"),
    "two numbers in a cell": (
        re.compile(rf"(rr\s*)?\d{{2,3}}\s*/\s*\d{{2,3}}(\s*mmhg)?|"
                   rf"[\[({{]?{_ANY_NUMBER}\s*[;,]\s*{_ANY_NUMBER}[\])}}]?", re.IGNORECASE), _EACH),
}
_LIMIT = re.compile(rf"(<|>|≤|≥|<=|>=|~)\s*{_ANY_NUMBER}")
_NOT_KNOWN = frozenset({".", "..", "-", "--", "–", "—", "?", "??", "*", "unknown", "unk", "unkn", "missing", "none",
                        "not known", "not available", "not done", "n.d.", "nd", "n.a.", "k.a.", "unbekannt", "void",
                        "nil", "error", "#value!", "#div/0!", "#ref!"})
_LONGEST_FORM = 60  # characters
_FALLING_PAIR = re.compile(r"(\d{2,3})\s*[-\u2013\\|: ]\s*(\d{2,3})")  # 120-80; a range such as 18-29 rises
DATE = re.compile(r"((\d{4}-\d\d?-\d\d?|\d\d?\.\d\d?\.\d{4})([T ].*)?|(19|20)\d\d-(0[1-9]|1[0-2]))")
_MONTH = (r"(jan(uary|uar|v|vier)?|ene(ro)?|gen(naio)?|f[eé]b(ruary|ruar|rero|braio)?|f[eé]vr?(ier)?|mar(ch|s|zo)?|"
          r"m[aä]rz?|a[pvb]r(il|ile)?|ma[iy]o?|maggio|jun[eio]?|junio|juin|giugno|jul[yi]?|julio|juil(let)?|luglio|"
          r"aug(ust)?|ao[uû]t|ago(sto)?|sept?(ember|embre|iembre)?|set(tembre)?|o[ck]t(ober|obre|ubre)?|ott(obre)?|"
          r"nov(ember|embre|iembre)?|d[eéi][cz](ember|embre|iembre)?)")
_YEAR, _PART = r"(19|20)\d\d", r"(q[1-4]|h[12]|(kw|cw|week)\s*\d\d?)"  # quarters, halves and weeks
LIKE_DATE = re.compile(rf"\s*(\d{{1,4}}[./-]\d{{1,2}}[./-]\d{{1,4}}.*|\d\d? \d\d? (19|20)\d\d|"
                       rf"(0?[1-9]|1[0-2])[./-](19|20)\d\d|"
                       rf"([01]?\d|2[0-3])([:h][0-5]\d){{1,2}}(\.\d+)?(\s*[ap]m)?|\d\d?([.:]\d\d)?\s*([ap]m|uhr)|"
                       rf"{_YEAR}\s*[-/ ]?\s*{_PART}|{_PART}\s*[-/ ]?\s*({_YEAR}|['’]?\d\d)|"
                       rf"[1-4]q\s*({_YEAR}|\d\d)|fy\s*{_YEAR}|{_YEAR}[-/.][1-9]|"
                       rf"(\d\d?\.){{2}}|\d\d?{_MONTH}(19|20)?\d\d|\d{{4}}-W\d\d(-\d)?|\d{{4}}年\d\d?月(\d\d?日)?|"
                       rf"\d\d?[ .-]+{_MONTH}\.?|"
                       rf"(\w{{2,10}}[.,]*\s+)?(\d\d?[ .-]+)?(de )?{_MONTH}[ .,'’-]+(de )?\d{{1,4}}(\W.*)?)",
                       re.IGNORECASE)
_TRUTH = {"true": True, "false": False}
NO_WORDS, YES_WORDS = ("0", "false", "no", "n"), ("1", "true", "yes", "y")
# Words for the same two things; the levels of a column are those of one pair.
_PAIRS = {what: [{*pair.split("/")} for pair in pairs.split()] for what, pairs in {
    "yes and no": "1/0 true/false t/f yes/no y/n ja/nein j/n oui/non si/no sí/no sì/no sim/não tak/nie да/нет "
                  "vrai/faux wahr/falsch on/off positive/negative pos/neg +/-",
    "the two sexes": "m/f male/female m/w man/woman männlich/weiblich homme/femme"}.items()}
# Capital letters of Greek and Cyrillic, and small ones of Cyrillic, that look like Latin ones; apostrophes.
_LOOK_LATIN = str.maketrans("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧАВЕКМНОРСТХІЈЅаеорсухіјѕ’‘ʼ´", "ABEZHIKMNOPTYXABEKMHOPCTXIJSaeopcyxijs''''")
_MANY = 0.95  # a share of numbers from which a column with a few texts is one of numbers
_DIFFERENT = 10  # as many different numbers, and fewer texts, are no categories
_PLAIN_NAME = re.compile(r"[^\W\d]\w*( \w+)*")


@dataclass(frozen=True)
class CellRules:
    """What the settings say about the cells of a table.

    Attributes:
        codes: column -> the cells that stand for a missing value; ``*``: those of all columns without an own list. They
            come in addition to empty cells and to words such as ``NA``; the list of a column replaces these words.
        text: the columns that are text, whatever their cells look like.
    """

    codes: Mapping[str, Sequence[Code]] = field(default_factory=dict)
    text: Collection[str] = frozenset()

    def __or__(self, other: "CellRules") -> "CellRules":
        """Both rules: those of an experiment and those of a site."""
        names = dict.fromkeys([*self.codes, *other.codes])
        return CellRules({name: [*self.codes.get(name, ()), *other.codes.get(name, ())] for name in names},
                         frozenset((*self.text, *other.text)))

    def renamed(self, names: Mapping[str, str]) -> "CellRules":
        """The same rules for columns with other names: name -> new name."""
        return CellRules({names.get(name, name): codes for name, codes in self.codes.items()},
                         frozenset(names.get(name, name) for name in self.text))

    def has_no_rule(self, name: str) -> bool:
        """Whether the column has no setting of its own, so that a file may be read without it."""
        return name not in self.codes and name not in self.text

    def words(self, name: str) -> frozenset[str]:
        """The cells that stand for a missing value in a column."""
        words = {text_of_value(code).strip() for code in self.codes.get(name, self.codes.get(ALL_COLUMNS, ()))}
        return frozenset(words | {""} | (set() if name in self.codes else MISSING_WORDS))

    def numbers(self, name: str) -> list[float]:
        """The numbers that stand for a missing value in a column."""
        codes = self.codes.get(name, self.codes.get(ALL_COLUMNS, ()))
        return [float(code) for code in codes if NUMBER.fullmatch(str(code).strip())]


class ColumnError(InputError):
    """A column cannot be read.

    Args:
        kind: ``dates``, ``kind`` (values of another or of several kinds), ``levels`` (too many categories) or
            ``spelling`` (levels that differ in upper and lower case only).
    """

    def __init__(self, kind: Literal["dates", "kind", "levels", "spelling"], message: str) -> None:
        super().__init__(message)
        self.kind = kind


def yaml_name(name: str) -> str:
    """The name of a column in a list of YAML: quoted unless it consists of letters and digits.

    >>> yaml_name("blood pressure"), yaml_name("a, b")
    ('blood pressure', "'a, b'")
    """
    is_plain = _PLAIN_NAME.fullmatch(name) and name.casefold() not in ("true", "false", "null", "yes", "no")
    return shorten(name if is_plain else repr(name))


def check_is_frame(table: object) -> None:
    """Refuse a table that is not pandas' own, such as those of Arrow and Polars."""
    import pandas as pd

    if not isinstance(table, pd.DataFrame):
        how = " with its to_pandas()" if hasattr(table, "to_pandas") else ""
        raise InputError(f"the table is a {type(table).__name__}, and a pandas.DataFrame is needed: convert it{how}")


def with_unique_names(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The frame with texts as names of columns.

    Raises:
        InputError: two columns have one name, a name has a control character, or the table is no data frame.
    """
    import pandas as pd

    check_is_frame(frame)
    names = pd.Index([str(name) for name in frame.columns], dtype=object)
    for mistake in duplicate_names(names.tolist()):
        raise InputError(mistake)
    for name in names:
        check_name(name, "the name of a column")
    return frame.set_axis(names, axis=1)


def duplicate_names(names: Sequence[str]) -> Iterator[str]:
    """A sentence for each name that two columns have."""
    for name, count in Counter(names).items():
        if count > 1:
            yield f"two columns are named {quote(name)}: give each a different name"


def read_cells(frame: "pd.DataFrame", names: Iterable[str], rules: CellRules) -> "pd.DataFrame":
    """The frame with these columns read: numbers, true/false, dates, categories, or text with NaN for missing values.

    Raises:
        ColumnError: a column is neither of numbers nor of text; the sentences of all such columns.
    """
    numeric = {name for name, dtype in zip(frame.columns, frame.dtypes, strict=True)
               if isinstance(dtype, np.dtype) and dtype.kind in "biuf" and rules.has_no_rule(name)}
    if rules.codes.get(ALL_COLUMNS):
        numeric = set()
    changed, mistakes = dict[str, Any](), list[ColumnError]()
    for name in dict.fromkeys(names):
        if name not in numeric and name in frame.columns:
            try:
                changed[name] = read_column_cells(name, frame[name], rules)
            except ColumnError as mistake:
                mistakes.append(mistake)
    if mistakes:
        raise ColumnError(mistakes[0].kind, "; ".join(map(str, mistakes)))
    return frame.assign(**changed) if changed else frame


def columns_of_codes(frame: "pd.DataFrame", rules: CellRules) -> list[str]:
    """The columns of text some of whose cells are numbers, so that a part of the rows could be one of numbers.

    The rows of a table that is divided among sites are read at each site, which needs ``text`` for these columns.
    """
    found, frame = [], with_unique_names(frame)
    for name in frame.columns:
        with contextlib.suppress(ColumnError):  # the reader of the columns that are used raises it
            column = read_column_cells(name, frame[name], rules)
            if column.dtype == object and any(NUMBER.fullmatch(str(value)) for value in column.dropna().unique()):
                found.append(name)
    return found


def read_column_cells(name: str, column: "pd.Series[Any]", rules: CellRules) -> "pd.Series[Any]":
    """A column read; see ``read_cells``."""
    read = _read_column(name, numpy_column(column), rules)
    # Nothing in a column without values tells its kind but the setting.
    return read.astype("category") if name in rules.text and read.isna().all() else read


def _read_column(name: str, column: "pd.Series[Any]", rules: CellRules) -> "pd.Series[Any]":
    import pandas as pd
    from pandas.api import types

    if isinstance(column.dtype, pd.CategoricalDtype):
        return _read_categories(name, column, rules)
    if column.dtype.kind in "biuf":
        if codes := rules.numbers(name):
            column = column.mask(column.isin(codes))
        return _texts_of(column) if name in rules.text else column
    if column.dtype != object:
        return column  # dates
    kind = types.infer_dtype(column, skipna=True)
    if kind in ("integer", "floating", "mixed-integer-float", "decimal", "boolean"):
        if kind != "boolean":
            try:
                whole = kind == "integer" and not column.isna().any() and abs(column).max() < 2**63
                column = column.astype(np.int64 if whole else np.float64)
            except OverflowError:
                return column  # the reader of features and labels names the column
            if codes := rules.numbers(name):
                column = column.mask(column.isin(codes))
        return _texts_of(column) if name in rules.text else column
    is_mixed = kind in ("mixed", "mixed-integer") and all(
        isinstance(value, str | int | float | decimal.Decimal | np.number) and not isinstance(value, bool)
        for value in column.dropna())
    if kind not in ("string", "empty") and not is_mixed:
        return _texts_of(column) if name in rules.text else column
    read = _read_texts(name, _texts_of(column) if is_mixed else column, rules)
    return column if is_mixed and read.dtype == object and name not in rules.text else read


def _read_texts(name: str, column: "pd.Series[Any]", rules: CellRules) -> "pd.Series[Any]":
    """A column of texts: of numbers, of true/false or of text."""
    import pandas as pd

    codes, values = column.factorize()
    texts, words, numbers = [str(value).strip() for value in values], rules.words(name), rules.numbers(name)
    is_number = np.array([NUMBER.fullmatch(text) is not None for text in texts], bool)
    is_missing = np.array([text in words or (number and float(text) in numbers)
                           for text, number in zip(texts, is_number, strict=True)], bool)

    def of_rows(values: Sequence[Any], dtype: Any) -> "pd.Series[Any]":
        """The values of the different texts as a column."""
        of_texts = np.empty(len(texts) + 1, object)  # the code -1 is that of no text
        of_texts[:] = [*(np.nan if gap else value for value, gap in zip(values, is_missing, strict=True)), np.nan]
        read: pd.Series[Any] = pd.Series(of_texts[codes], column.index, dtype=dtype)
        return read

    present = [text for text, gap in zip(texts, is_missing, strict=True) if not gap]
    has_gaps = bool((codes < 0).any()) or len(present) < len(texts)
    is_code = name in rules.text or any(map(LEADING_ZERO.fullmatch, present))
    if not is_code and all(map(NUMBER.fullmatch, present)):
        is_whole = not has_gaps and bool(present) and all(_WHOLE.fullmatch(text) and len(text) < 19 for text in present)
        return of_rows([int(text) if is_whole else float(text) if number else np.nan
                        for text, number in zip(texts, is_number, strict=True)], np.int64 if is_whole else np.float64)
    if not is_code and {text.casefold() for text in present} <= {*_TRUTH}:
        return of_rows([_TRUTH.get(text.casefold()) for text in texts], object if has_gaps else bool)
    def row_of(text: str) -> str:
        return f" in row {column.index[int(np.argmax(np.isin(codes, [i for i, t in enumerate(texts) if t == text])))]}"

    counts = Counter[str]()
    for text, rows in zip(texts, np.bincount(codes[codes >= 0], minlength=len(texts)).tolist(), strict=True):
        counts[text] += rows
    for mistake in level_mistakes(name, {text: counts[text] for text in present}, rules, row_of):
        raise mistake
    return of_rows(texts, object)


def _read_categories(name: str, column: "pd.Series[Any]", rules: CellRules) -> "pd.Series[Any]":
    """A column of pandas' category type, whose categories are levels, without those that are missing codes."""
    declared = {text_of_value(code).strip() for code in rules.codes.get(name, rules.codes.get(ALL_COLUMNS, ()))} | {""}
    column = column.cat.set_categories([c for c in column.cat.categories if str(c).strip() not in declared])
    if name not in rules.text:
        check_spellings(f"in column {quote(name)}", map(str, column.dropna().unique()),
                        f"text: [{yaml_name(name)}]")
    return column


def check_spellings(title: str, names: Iterable[str], setting: str = "") -> None:
    """Raise an error if two names differ only in upper and lower case or in blanks; see ``spelling_mistakes``."""
    for mistake in spelling_mistakes(title, names, setting):
        raise ColumnError("spelling", mistake)


def spelling_mistakes(title: str, names: Iterable[str], setting: str = "") -> Iterator[str]:
    """A sentence for each group of names that differ only in upper and lower case or in blanks.

    Args:
        title: where the names are, such as ``among the sites``.
        setting: what keeps them apart, if they are right.

    >>> [*spelling_mistakes("in column 'ward'", ["n o", "no", "yes"])]
    ["in column 'ward', 'n o' and 'no' differ only in upper and lower case or blanks: write them alike"]
    """
    groups: dict[str, set[str]] = defaultdict(set)
    for name in names:
        groups[_plain(name)].add(name)
    for group in (sorted(group) for group in groups.values() if len(group) > 1):
        keep = f", or set {setting} to keep them apart" if setting else ""
        if len({"".join(name.split()).casefold() for name in group}) == 1:
            how, shown = "differ only in upper and lower case or blanks", map(repr, group)
        else:
            how, shown = "look alike and have different characters", map(ascii, group)
        yield f"{title}, {' and '.join(shown)} {how}: write them alike{keep}"


def _plain(name: str) -> str:
    """The name in lower case, without blanks and signs that are not seen, and with one kind of hyphen."""
    if name.isascii():
        return "".join(name.split()).casefold()
    latin = unicodedata.normalize("NFKC", name.translate(_LOOK_LATIN)).casefold()
    kinds = [(sign, unicodedata.category(sign)) for sign in latin]
    return "".join("-" if kind == "Pd" else sign for sign, kind in kinds if kind != "Cf" and not sign.isspace())


def level_mistakes(name: str, counts: Mapping[str, int], rules: CellRules,
                   row_of: Callable[[str], str] = lambda _: "") -> Iterator[ColumnError]:
    """What is wrong with the levels of a column of text, at one site or at all: they are numbers, dates, or one level.

    Args:
        counts: level -> number of rows; of several sites 1, because they count other rows than one table has.
        row_of: where a level is, such as `` in row 5``.
    """
    if name in rules.text:
        return
    title, keep = f"column {quote(name)}", f"set text: [{yaml_name(name)}] if the column is a category"
    forms = {level: _form_of(level) for level in counts if not NUMBER.fullmatch(level)}
    first = next(iter(forms or counts), "")
    such = f"such as {quote(first)}{row_of(first)}"
    is_short = all(len(level) <= _LONGEST_FORM for level in counts)
    dates = {level for level in counts if DATE.fullmatch(level) or LIKE_DATE.fullmatch(level)}
    if len(dates) == len(counts):
        if not all(map(DATE.fullmatch, dates)):
            yield ColumnError("dates", f"{title} looks like dates or times, {such}: write them as 2024-12-31 or "
                              f"31.12.2024, and set dates: days, or {keep}")
    elif not any("," not in level and LEADING_ZERO.fullmatch(level) for level in counts):
        after, before = ({sign.sub("", level, count=1) for level in forms if is_short} - {""}
                         for sign in (_START, _END))
        if len(counts) > 1 and forms and all(forms.values()):
            yield ColumnError("kind", f"{title} holds {forms[first]}, {such}: {_DECORATED[forms[first]][1]}, or {keep}")
        elif (len(counts) >= _DIFFERENT or any(re.search(r"\d[.,]\d", level) for level in counts)) and (
                len(after) == 1 and len(counts) > 1 and all(map(_START.match, counts))):
            yield ColumnError("kind", f"{title} holds numbers with {quote(after.pop())} after them, {such}: "
                              f"{_ALONE}, or {keep}")
        elif (len(counts) == len(forms) >= _DIFFERENT and len(before) == 1 and all(map(_END.search, counts))
              and all(_is_before_number(text, forms) for text in before)):
            yield ColumnError("kind", f"{title} holds numbers with {quote(before.pop())} before them, {such}: "
                              f"{_ALONE}, or {keep}")
        for kind, levels in (("numbers", {level for level in counts if forms.get(level, True)}), ("dates", dates)):
            words = [level for level in counts if level not in levels]
            rows, known = sum(counts.values()), sum(counts[level] for level in levels)
            if words and _are_meant(words, rows, known, len(levels)):
                listed = ", ".join(quote(word) for word in words[:4])
                also = "" if len(words) == 1 else f" ({listed}{', ...' if len(words) > 4 else ''})"
                verb = "is" if rows - known == 1 else "and others are"
                where = f"{quote(words[0])}{row_of(words[0])}"
                yield ColumnError("kind", f"{title}: {known} of {rows} values are {kind}, and {where} {verb} "
                                  f"not{also}: set missing: [{listed}] if that stands for a missing value, {keep}, or "
                                  "correct it")
    for sentence in spelling_mistakes(f"in {title}", counts, f"text: [{yaml_name(name)}]"):
        yield ColumnError("spelling", sentence)
    names = {level.casefold() for level in counts}
    for what, pairs in _PAIRS.items():
        has_words = names <= {*"10ynj"} or any(len(word) > 1 for word in names)  # other letters may stand for anything
        if len(names) > 1 and has_words and names <= set().union(*pairs) and not any(names <= pair for pair in pairs):
            yield ColumnError("spelling", f"in {title}, {shorten(', '.join(map(repr, counts)))} are different words "
                              f"for {what}: write them alike, or {keep}")


def _form_of(level: str) -> str:
    """What a cell is that is a number with something around it; empty: something else, such as a long text."""
    if len(level) > _LONGEST_FORM:  # the forms match in quadratic time
        return ""
    pair = _FALLING_PAIR.fullmatch(level)
    if pair is not None and int(pair[1]) > int(pair[2]):
        return "two numbers in a cell"
    return next((what for what, (form, _) in _DECORATED.items() if form.fullmatch(level)), "")


def missing_advice(levels: Iterable[str]) -> str:
    """What else to do with a column of numbers that has these levels at a site: its few texts may be missing values."""
    words = {level: not NUMBER.fullmatch(level) for level in levels}
    texts = [level for level, is_word in words.items() if is_word]
    if not texts or 2 * len(texts) > len(words):
        return ""
    return f"set missing: [{', '.join(quote(text) for text in texts)}] if that stands for a missing value, "


def _are_meant(words: Sequence[str], rows: int, known: int, different: int) -> bool:
    """Whether a column with these texts beside ``different`` numbers, or dates, in so many rows is meant as such.

    The number of rows matters for few different numbers only. Where several sites have a column, their different values
    decide: a share of 95 % in all rows is reached at one of them at least, which refuses its own rows.
    """
    are_odd = all(word.casefold() in _NOT_KNOWN or _LIMIT.fullmatch(word) for word in words)
    return known > 0 and (are_odd or known >= _MANY * rows or different >= max(_DIFFERENT, len(words) + 1))


def _is_before_number(text: str, levels: Iterable[str]) -> bool:
    """Whether a text before numbers is a sign such as that of a currency, or a word before decimal numbers.

    Words before whole numbers, as in ward 1 and ward 2, are names of categories; so are codes such as E11.9.
    """
    if not any(sign.isalnum() for sign in text):
        return any(unicodedata.category(sign) in ("Sc", "Sm", "Pd") for sign in text)
    return not text[-1].isalnum() and any(re.search(r"\d[.,]\d", level) for level in levels)


def _texts_of(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """The values as texts, whole numbers without a decimal point; NaN if they are missing."""
    import pandas as pd

    empty = column.isna().to_numpy(bool)
    texts = [np.nan if gap else text_of_value(value) for value, gap in zip(column.tolist(), empty, strict=True)]
    return pd.Series(texts, column.index, dtype=object)


def text_of_value(value: Any) -> str:
    """A value as text: whole numbers have no decimal point, whatever their type.

    >>> text_of_value(2.0), text_of_value(2.5), text_of_value("2.0")
    ('2', '2.5', '2.0')
    """
    is_whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if is_whole else str(value)


def numpy_column(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """The column without pandas' extension types, such as those of Arrow; categories and time zones stay."""
    import pandas as pd
    from pandas.api import types

    dtype = column.dtype
    if types.is_object_dtype(dtype) and (gaps := column.isna()).any():  # pandas' own mark is no number
        return column.mask(gaps, np.nan)
    if isinstance(dtype, np.dtype | pd.CategoricalDtype | pd.DatetimeTZDtype | pd.PeriodDtype):
        return column
    if str(dtype).startswith("dictionary"):  # Arrow's type of categories
        return pd.Series(column.tolist(), column.index, dtype="category")
    has_gaps = bool(column.isna().any())
    if types.is_bool_dtype(dtype):
        column = column.astype(object).where(column.notna(), np.nan)
        return column if has_gaps else column.astype(bool)
    if types.is_integer_dtype(dtype) and not has_gaps:
        return column.astype(np.int64)
    if types.is_integer_dtype(dtype) or types.is_float_dtype(dtype):
        return pd.Series(column.to_numpy(np.float64, na_value=np.nan), column.index)
    if types.is_datetime64_any_dtype(dtype):
        return pd.to_datetime(column.astype(object))
    return pd.Series(column.to_numpy(dtype=object, na_value=np.nan), column.index, dtype=object)
