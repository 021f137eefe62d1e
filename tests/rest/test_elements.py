"""The elements of an array over REST, page by page."""

from urllib.parse import quote

from fastapi import FastAPI

from tests.rest.asgi import call
from tests.service.world import Embedded


def test_elements_are_listed_by_index_page_and_state(app: FastAPI, world: Embedded) -> None:
    array = world.submit(name="sweep", array="0-9%2")
    for index in (0, 1):
        world.until(f"{array}[{index}]", "running")
    indices, cursor = [], ""
    while cursor is not None:
        page = call(app, "GET", f"/jobs/sweep/elements?limit=4{cursor}").json
        indices += [row["index"] for row in page["items"]]
        cursor = None if page["next"] is None else f"&cursor={page['next']}"
    assert indices == list(range(10))
    pending = call(app, "GET", f"/jobs/{array}/elements?state=pending,suspended").json["items"]
    assert [row["id"] for row in pending] == [f"{array}[{index}]" for index in range(2, 10)]
    assert call(app, "GET", f"/jobs/{quote(pending[0]['id'])}").json["row"] == pending[0]
    assert call(app, "GET", f"/jobs/{array}").json["row"]["elements"] == {"pending": 8, "running": 2}
    refused = call(app, "GET", f"/jobs/{array}/logs")
    assert (refused.status, refused.json["code"]) == (409, "is_array")


def test_a_job_that_is_not_an_array_has_no_elements(app: FastAPI, world: Embedded) -> None:
    refused = call(app, "GET", f"/jobs/{world.submit()}/elements")
    assert (refused.status, refused.json["code"]) == (409, "not_an_array")
