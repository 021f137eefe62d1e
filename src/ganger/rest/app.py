"""The REST application: every route over one service. Served on the unix socket and, with tokens, over TCP."""

from typing import Final

from anyio import CapacityLimiter
from fastapi import FastAPI

from ganger import __version__
from ganger.engine.service import Service
from ganger.rest import problem_json
from ganger.rest.responses import describe
from ganger.rest.routes import (
    cluster_routes,
    code_routes,
    credential_routes,
    event_routes,
    exec_routes,
    health_routes,
    job_routes,
    output_routes,
    overview_routes,
    policy_routes,
    server_routes,
    telemetry_routes,
)
from ganger.rest.stream_feed import StreamFeed

PREFIX: Final = "/api/v1"
WRITERS: Final = 4
"""Maximum number of concurrent changes. More would only take the processor from the reads."""
SUBMITTERS: Final = 1
"""The same for submissions without code.

They compute, so two of them alternate under Python's lock, neither is done sooner, and a read waits for both: `python
-m bench ls_under_load`.
"""
STREAMERS: Final = 2
"""Maximum number of event-stream subscribers served at one time.

Hundreds of them wake with the same event, and must not take all threads from other requests.
"""


def make_app(service: Service, stop: server_routes.StopServer) -> FastAPI:
    """Return the application over `service`; `stop` ends the server that serves it."""
    app = FastAPI(
        title="ganger",
        version=__version__,
        description="Runs distributed training. Times are Unix ms, durations ms, sizes bytes.",
        openapi_url=f"{PREFIX}/openapi.json",
        # The documentation pages would load scripts from another host.
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,
    )
    app.state.service, app.state.stop, app.state.feed = service, stop, StreamFeed(service)
    app.state.writers, app.state.submitters = CapacityLimiter(WRITERS), CapacityLimiter(SUBMITTERS)
    app.state.streamers, app.state.upload_slots = CapacityLimiter(STREAMERS), code_routes.UploadSlots()
    for router in (
        server_routes.router,
        job_routes.router,
        code_routes.router,
        output_routes.router,
        exec_routes.router,
        cluster_routes.queues,
        cluster_routes.nodes,
        cluster_routes.maintenance,
        health_routes.node_health,
        policy_routes.router,
        event_routes.router,
        overview_routes.router,
        telemetry_routes.router,
        credential_routes.router,
    ):
        app.include_router(router, prefix=PREFIX)
    problem_json.install(app)
    app.openapi = describe(app, problem_json.SCHEMA)  # type: ignore[method-assign]
    return app
