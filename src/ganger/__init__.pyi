from ganger.client.client_errors import BadRequest as BadRequest
from ganger.client.client_errors import ClientError as ClientError
from ganger.client.client_errors import NotFound as NotFound
from ganger.client.client_errors import Refused as Refused
from ganger.client.client_errors import TimedOut as TimedOut
from ganger.client.client_errors import Unreachable as Unreachable
from ganger.sdk.clients import AsyncClient as AsyncClient
from ganger.sdk.clients import Client as Client
from ganger.sdk.job_fields import JobFields as JobFields
from ganger.sdk.job_handles import AsyncJob as AsyncJob
from ganger.sdk.job_handles import Job as Job
from ganger.sdk.sdk_types import JobFailed as JobFailed
from ganger.sdk.sdk_types import JobFile as JobFile
from ganger.sdk.sdk_types import LogLine as LogLine
from ganger.sdk.sdk_types import Report as Report
from ganger.sdk.shortcuts import events as events
from ganger.sdk.shortcuts import explain as explain
from ganger.sdk.shortcuts import logs as logs
from ganger.sdk.shortcuts import run as run
from ganger.sdk.shortcuts import stop as stop
from ganger.sdk.shortcuts import submit as submit
from ganger.sdk.shortcuts import wait as wait
from ganger.sdk.tasks import Task as Task
from ganger.sdk.tasks import task as task

__version__: str
