"""What two runs of one query over the same rows may differ in: clocks and dice, what ties decide, and floats that are added up in another order.

In: the texts of a query and of the views behind it, and where floats are.
Out: the words in them by which another answer is no wrong one.
Promise: pure; looks at words, and rather names one too many: what is named is compared with the ledger, and not called proved.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

import sqlglot
from sqlglot import Token, TokenType

_STRINGS = frozenset(
    {TokenType.STRING, TokenType.RAW_STRING, TokenType.NATIONAL_STRING, TokenType.BYTE_STRING, TokenType.HEREDOC_STRING, TokenType.UNICODE_STRING}
)
_NAMES = frozenset({TokenType.VAR, TokenType.IDENTIFIER})
_BEFORE_STARS = frozenset({TokenType.SELECT, TokenType.DISTINCT, TokenType.ALL, TokenType.COMMA, TokenType.DOT})  # elsewhere it multiplies, or counts

_POSTGRES_WORDS = re.compile(
    r"current_(date|time|timestamp|user|role|catalog|schema)|localtime|localtimestamp|session_user|system_user|user|limit|fetch|offset|tablesample"
)
_POSTGRES_CALLS = re.compile(
    r"now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday|age|current_\w+|random\w*|gen_random_uuid|uuidv\d|"
    r"nextval|currval|lastval|pg_\w+|txid_\w+|inet_(client|server)_\w+|version|"
    # Ties, or the order of rows, decide what they give.
    r"row_number|ntile|lag|lead|first_value|last_value|nth_value|mode|any_value|array|array_agg|string_agg|xmlagg|json_array|json_(array|object)agg|"
    r"jsonb?_agg\w*|jsonb?_object_agg\w*"
)
_POSTGRES_MOMENTS = re.compile(r"\b(now|today|yesterday|tomorrow)\b", re.IGNORECASE)  # as dates and timestamps they mean another one each time
_FRAME_BEGINS = frozenset({"between", "unbounded", "current"})

_SUMS = re.compile(r"(?:try_)?(?:sum|avg)|mean|std|stddev(?:_pop|_samp)?|variance|var_(?:pop|samp)|covar_(?:pop|samp)|corr|skewness|kurtosis|regr_\w+")
# Spark's averages of whole numbers are floats, and yet the same in any order.
_AVERAGES = frozenset({"avg", "try_avg", "mean"})
_FLOAT_WORDS = re.compile(r"double|double precision|float\d?|real|[\d.]+e[+-]?\d+")
_FLOAT_CALLS = re.compile(
    r"try_divide|sqrt|cbrt|exp|expm1|ln|log\w*|pow|power|pi|e|degrees|radians|hypot|a?(?:sin|cos|tan)h?|atan2|cot|csc|sec"
    r"|rand\w*|uniform|median|percentile\w*|cume_dist|percent_rank"
)


def volatile_in_postgres(text: str, parameters: Iterable[str] = ()) -> set[str]:
    """Return what may make two runs of a query in PostgreSQL's SQL differ."""
    tokens = sqlglot.tokenize(text, read="postgres")
    texts = [*parameters, *(token.text for token in tokens if token.token_type in _STRINGS)]
    found = {match[0].lower() for text in texts for match in _POSTGRES_MOMENTS.finditer(text)}
    for token, following in pairwise([*tokens, Token(TokenType.SEMICOLON, ";")]):
        word = _word(token)
        is_call, is_name = following.token_type is TokenType.L_PAREN, token.token_type is TokenType.IDENTIFIER
        if (is_call and _POSTGRES_CALLS.fullmatch(word)) or (not is_name and _POSTGRES_WORDS.fullmatch(word)):
            found.add(word)
        if word == "distinct" and following.token_type is TokenType.ON:
            found.add("distinct on")
        if word == "rows" and (_word(following) in _FRAME_BEGINS or following.token_type in {TokenType.NUMBER, TokenType.PLACEHOLDER}):
            found.add(word)
    return found


def float_sums(texts: Sequence[str], *, dialect: str, float_columns: Collection[str], in_answer: bool, in_parameters: bool) -> set[str]:
    """Return the aggregates that add up floats, or may do so: what they give depends on the order of the rows, which no table has.

    `float_columns` are those of the tables that are read, in lower case. Aggregates of a query that touches none of them, and makes none, are exact.
    """
    read = [sqlglot.tokenize(text, read=dialect) for text in texts]
    sums = {_word(token) for tokens in read for token, following in pairwise(tokens) if following.token_type is TokenType.L_PAREN}
    sums = {word for word in sums if _SUMS.fullmatch(word)}
    floats = in_parameters or (in_answer and not sums <= _AVERAGES) or any(_touches_floats(tokens, float_columns) for tokens in read)
    return sums if floats else set()


def _touches_floats(tokens: Sequence[Token], columns: Collection[str]) -> bool:
    words = [_word(token) for token in tokens]
    if any(token.token_type in {TokenType.SLASH, TokenType.CARET} for token in tokens) or any(_FLOAT_WORDS.fullmatch(word) for word in words):
        return True
    if any(_FLOAT_CALLS.fullmatch(word) and following == "(" for word, following in pairwise(words)):
        return True
    return bool(columns) and (any(word in columns for word in words) or _takes_unnamed(tokens))


def _takes_unnamed(tokens: Sequence[Token]) -> bool:
    """Tell whether columns are read without their names: by a star, by TABLE, by FROM alone, or under other names as in `FROM sale AS s(a, b)`."""
    if tokens[0].token_type is TokenType.FROM:
        return True
    for before, token, after in zip(tokens, tokens[1:], [*tokens[2:], tokens[0]], strict=False):
        if before.token_type is TokenType.TABLE or (token.token_type is TokenType.STAR and before.token_type in _BEFORE_STARS):
            return True
        if token.token_type in _NAMES and after.token_type is TokenType.L_PAREN and before.token_type in {TokenType.ALIAS, *_NAMES}:
            return True
    return False


def _word(token: Token) -> str:
    return "" if token.token_type in _STRINGS else token.text.lower()
