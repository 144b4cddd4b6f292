"""Keeps the requests that schemathesis makes within a test's patience: whoever asks for the next seconds waits for them."""

import schemathesis


@schemathesis.hook
def map_query(context, query):
    if query and isinstance(query.get("seconds"), int) and query["seconds"] > 1:
        query["seconds"] = 1
    return query
