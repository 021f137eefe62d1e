"""The route of /batches: a file of several jobs, submitted together."""

from dataclasses import replace
from typing import Final

from fastapi import APIRouter, Request, Response

from ganger.engine.service import Submission
from ganger.model.views.service_views import JobView
from ganger.rest.responses import CHANGES, Served, answer, changed, shown
from ganger.rest.routes.job_routes import Key

router: Final = APIRouter(prefix="/batches", tags=["jobs"])


@router.post("", status_code=201, responses=shown(JobView, *CHANGES, status=201, many=True))
async def submit_batch(
    request: Request, service: Served, submission: Submission, idempotency_key: Key = None
) -> Response:
    """Submit every job of a file of several documents, those that others come `after` first. Nothing is taken when one
    of them is wrong. A repeat, with the same Idempotency-Key or request_id, gives the jobs of the first."""
    asked = replace(submission, request_id=idempotency_key) if idempotency_key else submission
    jobs = await changed(request, lambda: service.submit_all(asked))
    return answer({"items": jobs, "next": None}, 201)
