from ganger.faces.sdk import AsyncClient as AsyncClient
from ganger.faces.sdk import AsyncJob as AsyncJob
from ganger.faces.sdk import BadRequest as BadRequest
from ganger.faces.sdk import Client as Client
from ganger.faces.sdk import ClientError as ClientError
from ganger.faces.sdk import Job as Job
from ganger.faces.sdk import JobFailed as JobFailed
from ganger.faces.sdk import JobFields as JobFields
from ganger.faces.sdk import JobFile as JobFile
from ganger.faces.sdk import LogLine as LogLine
from ganger.faces.sdk import NotFound as NotFound
from ganger.faces.sdk import Refused as Refused
from ganger.faces.sdk import Report as Report
from ganger.faces.sdk import Task as Task
from ganger.faces.sdk import TimedOut as TimedOut
from ganger.faces.sdk import Unreachable as Unreachable
from ganger.faces.sdk import events as events
from ganger.faces.sdk import explain as explain
from ganger.faces.sdk import logs as logs
from ganger.faces.sdk import run as run
from ganger.faces.sdk import stop as stop
from ganger.faces.sdk import submit as submit
from ganger.faces.sdk import task as task
from ganger.faces.sdk import wait as wait

__version__: str
