"""The functions that a SELECT may call, and what it reads, by DuckDB's own parse. All other functions are refused.

DuckDB checks for interrupts between function calls, not inside one. So a function is listed only if its time and its
result are about linear in its argument. Functions that compare every character with every other, wait, build values of
arbitrary size, run a lambda over a list, or reveal facts about the server are not listed. REPLACE and REGEXP_REPLACE
are allowed with a short, constant replacement.

The names come from DuckDB's own parse, where an operator, a quoted call and `x.f()` are all functions with a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from tailrace.sql.lexer import parameter_number

INSERTED_CHARACTERS_MAX: Final = 4  # of the replacement of REGEXP_REPLACE
PATTERN_CHARACTERS_MAX: Final = 200  # of a regular expression

_OPERATORS: Final = "+ - * / // % ** ^ & | << >> ~ @ || ~~ !~~ ~~* !~~* ~~~ ^@ -> ->> && @> <@ <=> <->"
_AGGREGATES: Final = """
    any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null arg_min arg_min_null
    argmax argmin array_agg avg bit_and bit_or bit_xor bool_and bool_or corr count count_if count_star countif covar_pop
    covar_samp entropy favg first fsum geomean geometric_mean group_concat histogram json_group_array json_group_object
    kahan_sum kurtosis kurtosis_pop last list listagg mad max max_by mean median min min_by mode product quantile
    quantile_cont quantile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy
    regr_syy reservoir_quantile sem skewness stddev stddev_pop stddev_samp string_agg sum sumkahan var_pop var_samp
    variance wavg weighted_avg
"""
_WINDOWS: Final = """
    row_number rank rank_dense dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value fill
"""
_NUMBERS: Final = """
    abs acos acosh add asin asinh atan atan2 atanh bit_count cbrt ceil ceiling cos cosh cot degrees divide even exp
    factorial fdiv floor fmod gamma gcd greatest greatest_common_divisor isfinite isinf isnan lcm least
    least_common_multiple lgamma ln log log10 log2 mod multiply nextafter pi pow power radians random round round_even
    roundbankers sign signbit sin sinh sqrt subtract tan tanh trunc xor
"""
_TEXTS: Final = """
    ascii base64 bin bit_length char_length character_length chr concat concat_ws contains decode encode ends_with
    from_base64 from_hex hash hex ilike_escape instr lcase left length length_grapheme like_escape lower ltrim md5
    not_ilike_escape not_like_escape octet_length ord position prefix regexp_escape regexp_extract regexp_extract_all
    regexp_full_match regexp_matches regexp_replace regexp_split_to_array replace reverse right rtrim sha1 sha256 split
    split_part starts_with str_split str_split_regex string_split string_split_regex string_to_array strip_accents
    strlen strpos substr substring substring_grapheme suffix to_base64 to_hex translate trim ucase unhex unicode upper
    uuid gen_random_uuid uuidv4 uuidv7 format_bytes
"""
_TIMES: Final = """
    age ago century current_date current_localtime current_localtimestamp date_add date_diff date_part date_sub
    date_trunc datediff datepart datesub datetrunc day dayname dayofmonth dayofweek dayofyear days_in_month decade epoch
    epoch_ms epoch_ns epoch_us era get_current_time get_current_timestamp hour isodow isoyear julian last_day make_date
    make_time make_timestamp make_timestamp_ms make_timestamptz microsecond millennium millisecond minute month
    monthname nanosecond now quarter second strftime strptime time_bucket timezone timezone_hour timezone_minute
    to_centuries to_days to_decades to_hours to_microseconds to_millennia to_milliseconds to_minutes to_months
    to_quarters to_seconds to_timestamp to_weeks to_years today transaction_timestamp try_strptime week weekday
    weekofyear year yearweek
"""
_NESTED: Final = """
    array_append array_cat array_concat array_contains array_distinct array_extract array_has array_has_all
    array_has_any array_indexof array_intersect array_length array_position array_prepend array_reverse
    array_reverse_sort array_slice array_sort array_to_string array_unique array_value array_zip cardinality
    element_at flatten len list_any_value list_append list_avg list_bool_and list_bool_or list_cat list_concat
    list_contains list_count list_distinct list_element list_extract list_first list_has list_has_all list_has_any
    list_indexof list_intersect list_last list_max list_median list_min list_mode list_pack list_position list_prepend
    list_product list_reverse list_reverse_sort list_slice list_sort list_stddev_pop list_stddev_samp list_string_agg
    list_sum list_unique list_value list_var_pop list_var_samp list_where list_zip map map_concat map_contains
    map_contains_value map_entries map_extract map_extract_value map_from_entries map_keys map_values row struct_concat
    struct_contains struct_extract struct_extract_at struct_has struct_insert struct_keys struct_pack struct_position
    struct_update struct_values unnest
"""
_JSON: Final = """
    array_to_json json json_array json_array_length json_contains json_exists json_extract json_extract_path
    json_extract_path_text json_extract_string json_keys json_object json_quote json_type json_valid json_value
    row_to_json to_json
"""
_CALLER: Final = "current_user session_user user current_role"  # their value is the caller's name
_CHOICES: Final = "coalesce if ifnull nullif typeof try_cast constant_or_null"

FUNCTIONS: Final = frozenset(
    " ".join((_OPERATORS, _AGGREGATES, _WINDOWS, _NUMBERS, _TEXTS, _TIMES, _NESTED, _JSON, _CALLER, _CHOICES)).split()
)
_REGEXES: Final = frozenset(
    name for name in FUNCTIONS if name.endswith("_regex") or (name.startswith("regexp_") and name != "regexp_escape")
)
_TYPES_REFUSED: Final = frozenset(("bignum", "varint"))  # parsing one is quadratic in its digits
_NOWHERE: Final = 2**64 - 1  # DuckDB's location of nodes that it generated


class RefusedCall(NamedTuple):
    """A call that is not allowed: its position, in bytes of the text, and the reason."""

    position: int
    reason: str


def refused(tree: Any, params: Sequence[Any]) -> Iterator[RefusedCall]:
    """The calls in a statement, as DuckDB serializes it, that are not allowed."""
    left = [(tree, 0)]
    while left:
        node, around = left.pop()
        if isinstance(node, list):
            left += [(each, around) for each in node]
        elif isinstance(node, dict):
            location = node.get("query_location", _NOWHERE)
            position = location if isinstance(location, int) and location < _NOWHERE else around
            left += [(each, position) for each in node.values()]
            if "function_name" in node:
                reason = _reason(node, params)
            elif node.get("class") == "TYPE" and str(node.get("type_name")).lower() in _TYPES_REFUSED:
                reason = f"the type {node['type_name']} cannot be used; use DECIMAL or DOUBLE"
            else:
                continue
            if reason is not None:
                yield RefusedCall(position, reason)


def sources(tree: Any) -> Iterator[str]:
    """The names of everything that a statement reads, according to DuckDB's parse."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left += node
        elif isinstance(node, dict):
            left += node.values()
            if node.get("type") == "BASE_TABLE":
                yield ".".join(filter(None, (node.get("catalog_name"), node.get("schema_name"), node["table_name"])))
            elif node.get("type") == "SHOW_REF":
                yield "SHOW"
            elif node.get("type") == "TABLE_FUNCTION":
                name = str(node["function"].get("function_name"))
                if name.lower() != "unnest":
                    yield f"{name}()"


def allowed(name: str) -> bool:
    """Whether a function of this name may be called."""
    return name.lower() in FUNCTIONS


def _reason(node: dict[str, Any], params: Sequence[Any]) -> str | None:
    name = str(node["function_name"]).lower()
    if not allowed(name):
        return f"the function {name[:80]} cannot be used in a SELECT"
    if name != "replace" and name not in _REGEXES:
        return None
    given = node.get("arguments") or ()
    if node.get("schema") or node.get("catalog") or any(each["name"] for each in given):
        return f"write {name}(…) with all arguments in parentheses"  # DuckDB's parse of x.f(y) does not list x
    arguments = [each["expression"] for each in given]
    if name == "replace" and len(arguments) == 3:
        part, by = (_text(each, params) for each in arguments[1:])
        if part is None or by is None or len(by.encode(errors="replace")) > len(part.encode(errors="replace")):
            return "in replace(text, part, by), part and by must be literals or parameters, and by no longer than part"
    if name in _REGEXES and len(arguments) > 1:
        pattern = _text(arguments[1], params)
        if pattern is None or len(pattern) > PATTERN_CHARACTERS_MAX:
            return (
                f"the pattern of {name} must be a literal or a parameter of at most {PATTERN_CHARACTERS_MAX} characters"
            )
    if name == "regexp_replace" and len(arguments) > 2:
        by = _text(arguments[2], params)
        if by is None or len(by) > INSERTED_CHARACTERS_MAX:
            return (
                "the replacement of regexp_replace must be a literal or a parameter of at most "
                f"{INSERTED_CHARACTERS_MAX} characters"
            )
    return None


def _text(node: Any, params: Sequence[Any]) -> str | None:
    """The text of a literal or a parameter."""
    if node.get("class") == "CONSTANT":
        literal = node.get("literal")
        text = literal.get("text") if isinstance(literal, dict) and literal.get("kind") == "STRING" else None
        return text if isinstance(text, str) else None
    if node.get("class") == "PARAMETER" and (number := parameter_number(str(node.get("identifier")))):
        given = params[number - 1] if number <= len(params) else None
        return given if isinstance(given, str) else None
    return None
