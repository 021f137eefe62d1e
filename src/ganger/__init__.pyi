from ganger.faces.client.errors import BadRequest as BadRequest
from ganger.faces.client.errors import ClientError as ClientError
from ganger.faces.client.errors import NotFound as NotFound
from ganger.faces.client.errors import Refused as Refused
from ganger.faces.client.errors import TimedOut as TimedOut
from ganger.faces.client.errors import Unreachable as Unreachable
from ganger.faces.sdk.client import AsyncClient as AsyncClient
from ganger.faces.sdk.client import Client as Client
from ganger.faces.sdk.cluster import Cluster as Cluster
from ganger.faces.sdk.cluster import ClusterJob as ClusterJob
from ganger.faces.sdk.fields import JobFields as JobFields
from ganger.faces.sdk.job import AsyncJob as AsyncJob
from ganger.faces.sdk.job import Job as Job
from ganger.faces.sdk.shortcuts import events as events
from ganger.faces.sdk.shortcuts import explain as explain
from ganger.faces.sdk.shortcuts import logs as logs
from ganger.faces.sdk.shortcuts import run as run
from ganger.faces.sdk.shortcuts import stop as stop
from ganger.faces.sdk.shortcuts import submit as submit
from ganger.faces.sdk.shortcuts import wait as wait
from ganger.faces.sdk.tasks import Task as Task
from ganger.faces.sdk.tasks import task as task
from ganger.faces.sdk.values import JobFailed as JobFailed
from ganger.faces.sdk.values import JobFile as JobFile
from ganger.faces.sdk.values import LogLine as LogLine
from ganger.faces.sdk.values import Report as Report

__version__: str
