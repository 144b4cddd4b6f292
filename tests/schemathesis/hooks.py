"""What schemathesis cannot know: how moments and regular expressions are written, that whoever asks for the next seconds waits
for them, and that these and a range exclude each other."""

import schemathesis
from hypothesis import strategies as st

schemathesis.openapi.format(
    "moment",
    st.one_of(
        st.just("now"),
        st.integers(0, 700).map(lambda hours: f"-{hours}h"),
        st.integers(0, 9999).map(lambda seconds: f"-{seconds}s"),
        st.integers(0, 2**33).map(str),
        st.times().map(lambda time: time.strftime("%H:%M:%S")),
        st.datetimes().map(lambda time: time.strftime("%Y-%m-%dT%H:%MZ")),
    ),
)
schemathesis.openapi.format("regex", st.sampled_from(["^bash$", "bash|sh", ".*", "[a-z]+", "^sweet", "nothing like it"]))


@schemathesis.hook
def map_query(context, query):
    seconds = query.get("seconds") if query else None
    if isinstance(seconds, int) and not isinstance(seconds, bool) and seconds >= 1:
        query["seconds"] = min(seconds, 1)
        query.pop("from", None)
        query.pop("to", None)
    return query


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.path == "/debug/pprof/profile" and not (case.query or {}).get("seconds"):
        case.query = {**(case.query or {}), "seconds": 1}  # half a minute, else
