"""List the released applications: their packages, the code of the app, and the requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MODULE = "trial"


@dataclass(frozen=True)
class Ask:
    """A request.

    :ivar once: whether the request only prepares other requests, for example by creating data. The
        response is then not compared.
    """

    path: str
    method: str = "GET"
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()
    once: bool = False


@dataclass(frozen=True)
class Application:
    """A released application.

    :ivar packages: the packages that pip installs.
    :ivar source: the code of a module that makes `app`. The servers import it in the application's
        folder.
    :ivar paths: the paths to request. The scripts, styles and images of each page are added.
    :ivar asgi: whether the usual server is uvicorn. Otherwise it is gunicorn.
    :ivar prepare: Python programs to run once in the application's folder before the first start.
    """

    name: str
    packages: Sequence[str]
    source: str
    paths: Sequence[str | Ask]
    asgi: bool = False
    prepare: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def _json(path: str, body: str, *, method: str = "POST", once: bool = False) -> Ask:
    return Ask(path, method, body.encode(), (("Content-Type", "application/json"),), once)


_PUBLIC = ("x-amz-acl", "public-read")
_AUDIO = """
import math, os, struct, wave
os.makedirs("music/artist/album", exist_ok=True)
with wave.open("music/artist/album/song.wav", "wb") as file:
    file.setnchannels(1); file.setsampwidth(2); file.setframerate(8000)
    second = b"".join(struct.pack("<h", int(9000 * math.sin(n / 9))) for n in range(8000))
    file.writeframes(second * 300)
"""

APPLICATIONS = (
    Application(
        "dash",
        ["dash"],
        """
import os
from dash import Dash, dcc, html
dash = Dash("trial", assets_folder=os.path.abspath("assets"))
dash.layout = html.Div([html.H1("Trial"), dcc.Graph(figure={"data": [{"y": [1, 2, 3]}]})])
app = dash.server
""",
        ["/", "/_dash-layout", "/_dash-dependencies", "/assets/own.css", "/_favicon.ico",
         "/_dash-component-suites/dash/dcc/async-graph.js", "/nowhere"],
        prepare=["""
import os
os.makedirs("assets", exist_ok=True)
open("assets/own.css", "w").write("body { color: black }\\n" * 500)
"""],
    ),
    Application(
        "fava",
        ["fava"],
        """
import os
from fava.application import create_app
app = create_app([os.path.abspath("main.beancount")], load=True)
""",
        ["/", "/main/income_statement/", "/main/api/ledger_data", "/main/journal/",
         "/main/statement/?entry_hash=0", "/main/download-journal/", "/static/app.js",
         "/main/api/get_ledger_data", "/main/document/?filename=receipt.txt"],
        prepare=["""
open("receipt.txt", "w").write("a receipt\\n" * 500_000)
with open("main.beancount", "w") as file:
    file.write('option "title" "Trial"\\noption "documents" "."\\n')
    for name in ("Assets:Cash", "Expenses:Food", "Equity:Opening"):
        file.write(f"2020-01-01 open {name}\\n")
    for day in range(1, 29):
        file.write(f'2020-02-{day:02} * "Meal {day}"\\n  Expenses:Food  {day}.00 EUR\\n'
                   "  Assets:Cash\\n")
"""],
    ),
    Application(
        "kinto",
        ["kinto"],
        """
from kinto import main
core = "kinto.core"
app = main({}, **{
    "kinto.includes": "kinto.plugins.default_bucket kinto.plugins.admin kinto.plugins.accounts",
    "kinto.storage_backend": f"{core}.storage.memory",
    "kinto.cache_backend": f"{core}.cache.memory",
    "kinto.permission_backend": f"{core}.permission.memory",
    "kinto.userid_hmac_secret": "secret", "multiauth.policies": "account",
    "multiauth.policy.account.use":
        "kinto.plugins.accounts.authentication.AccountsAuthenticationPolicy",
    "kinto.account_create_principals": "system.Everyone",
    "kinto.bucket_create_principals": "system.Everyone",
})
""",
        [
            "/v1/", "/", "/v1/__heartbeat__", "/v1/__lbheartbeat__", "/v1/__version__",
            "/v1/__api__", "/v1/admin/", "/v1/contribute.json", "/v1/buckets", "/v1/nowhere",
            _json("/v1/buckets/trial", "{}", method="PUT", once=True),
            Ask("/v1/buckets/trial", headers=(("Authorization", "Basic YWxpY2U6YWxpY2U="),)),
            _json("/v1/batch", '{"requests": [{"path": "/v1/"}, {"path": "/v1/__version__"}]}'),
        ],
    ),
    Application(
        "supysonic",
        ["supysonic"],
        """
import os
from supysonic.config import DefaultConfig
class Config(DefaultConfig):
    def __init__(self):
        super().__init__()
        self.BASE["database_uri"] = "sqlite:///" + os.path.abspath("supysonic.db")
        self.WEBAPP["cache_dir"] = os.path.abspath("cache")
        self.WEBAPP["log_file"] = os.path.abspath("supysonic.log")
        self.DAEMON["socket"] = os.path.abspath("daemon")
from supysonic.web import create_application
app = create_application(Config())
""",
        ["/", "/user/login", "/static/css/supysonic.css",
         *(f"/rest/{view}.view?u=alice&p=Alice123&c=trial&f=json"
           for view in ("ping", "getMusicFolders", "getIndexes", "getRandomSongs", "getUsers",
                        "getAlbumList2", "getLicense")),
         "/rest/getIndexes.view?u=alice&p=Alice123&c=trial",
         "/rest/stream.view?u=alice&p=Alice123&c=trial&id={song}",
         "/rest/download.view?u=alice&p=Alice123&c=trial&id={song}", "/nowhere"],
        prepare=[_AUDIO, """
import os, sys
sys.path.insert(0, ".")
import trial
from supysonic.db import Track, open_connection
from supysonic.managers.user import UserManager
from supysonic.managers.folder import FolderManager
from supysonic.scanner import Scanner
UserManager.add("alice", "Alice123", admin=True)
FolderManager.add("music", os.path.abspath("music"))
scanner = Scanner(); scanner.queue_folder("music"); scanner.run()
tracks = list(Track.select())
open("names", "w").write(f"song {tracks[0].id}\\n" if tracks else "")
"""],
    ),
    Application(
        "beets",
        ["beets[web]"],
        """
import os
os.environ["BEETSDIR"] = os.path.abspath("beetsdir")
from beets.library import Library
from beetsplug.web import app
app.config["lib"] = Library("library.db", os.path.abspath("library"))
app.config["INCLUDE_PATHS"] = False
app.config["READONLY"] = True
""",
        ["/", "/item/", "/item/1", "/item/1/file", "/item/query/song", "/album/", "/stats",
         "/item/values/artist", "/album/1?expand", "/nowhere"],
        prepare=[_AUDIO, """
import os
os.makedirs("beetsdir", exist_ok=True)
from beets.library import Item, Library
library = Library("library.db", os.path.abspath("library"))
path = os.path.abspath("music/artist/album/song.wav")
items = [library.add(Item(title=f"song {n}", artist="artist", path=path.encode()))
         for n in range(200)]
library.add_album(list(library.items())[:3])
"""],
    ),
    Application(
        "moto",
        ["moto[server]"],
        """
from moto.server import DomainDispatcherApplication, create_backend_app
app = DomainDispatcherApplication(create_backend_app)
""",
        [
            "/moto-api/", "/moto-api/data.json", "/",
            Ask("/trial-bucket", "PUT", once=True),
            Ask("/trial-bucket/text.txt", "PUT", b"a line of text\n" * 5000,
                (("Content-Type", "text/plain"), _PUBLIC), once=True),
            Ask("/trial-bucket/big.bin", "PUT", bytes(range(256)) * 20000, (_PUBLIC,), once=True),
            "/trial-bucket", "/trial-bucket/text.txt", "/trial-bucket/big.bin",
            "/trial-bucket/nowhere", "/trial-bucket?list-type=2", "/trial-bucket?location",
            Ask("/", "POST", b"Action=ListQueues&Version=2012-11-05",
                (("Content-Type", "application/x-www-form-urlencoded"),
                 ("Authorization", "AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/sqs/aws4"))),
        ],
    ),
    Application(
        "tensorboard",
        ["tensorboard"],
        """
from tensorboard import program
from tensorboard.backend import application
tensorboard = program.TensorBoard()
tensorboard.configure(argv=[None, "--logdir", "logs", "--load_fast=false",
                            "--reload_interval=0"])
provider, multiplexer = tensorboard._make_data_provider()
app = application.TensorBoardWSGIApp(
    tensorboard.flags, tensorboard.plugin_loaders, provider, tensorboard.assets_zip_provider,
    multiplexer)
""",
        ["/", "/index.js", "/data/environment", "/data/plugins_listing", "/data/runs",
         "/data/plugin/scalars/tags", "/data/plugin/scalars/scalars?run=.&tag=loss",
         "/data/plugin/timeseries/tags", "/icon_bundle.svg",
         "/data/plugin_entry.html?name=projector", "/nowhere"],
        prepare=["""
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter("logs")
for step in range(500):
    value = Summary.Value(tag="loss", simple_value=1 / (step + 1))
    writer.add_event(Event(step=step, wall_time=step, summary=Summary(value=[value])))
writer.close()
"""],
    ),
    Application(
        "wagtail",
        ["wagtail"],
        """
import os, sys
sys.path.insert(0, os.path.abspath("site_of_trial"))
os.environ["DJANGO_SETTINGS_MODULE"] = "trial_site.settings.dev"
from django.core.wsgi import get_wsgi_application
app = get_wsgi_application()
""",
        ["/", "/admin/login/", "/search/?query=a", "/documents/1/report.txt", "/admin/",
         "/static/wagtailadmin/css/core.css", "/nowhere/"],
        prepare=["""
import os, subprocess, sys
os.makedirs("site_of_trial", exist_ok=True)
program = os.path.join(os.path.dirname(sys.executable), "wagtail")
subprocess.run([program, "start", "trial_site", "site_of_trial"], check=True)
manage = [sys.executable, "site_of_trial/manage.py"]
subprocess.run([*manage, "migrate", "--verbosity=0"], check=True)
code = '''
from django.core.files.base import ContentFile
from wagtail.documents.models import Document
Document.objects.create(title="report", file=ContentFile(b"a line\\\\n" * 9000, name="report.txt"))
'''
subprocess.run([*manage, "shell", "-c", code], check=True)
"""],
    ),
    Application(
        "changedetection.io",
        ["changedetection.io"],
        """
import os
from changedetectionio import store
from changedetectionio.flask_app import changedetection_app
os.makedirs("datastore", exist_ok=True)
config = {"datastore_path": os.path.abspath("datastore"), "batch_mode": False,
          "recheck_watches": None, "recheck_repeat_count": 1}
datastore = store.ChangeDetectionStore(
    datastore_path=config["datastore_path"], version_tag="trial", include_default_watches=False)
datastore.data["settings"]["application"]["all_paused"] = True
app = changedetection_app(config, datastore)
""",
        ["/", "/settings", "/imports/import", "/api/v1/watch", "/static/images/avatar-256x256.png",
         "/tags/list", "/backups/", "/rss?token=x", "/nowhere"],
        env={"DISABLE_VERSION_CHECK": "true"},
    ),
    Application(
        "pgadmin4",
        ["pgadmin4"],
        """
import builtins, importlib.util, os, sys
builtins.SERVER_MODE = True
folder = os.path.dirname(importlib.util.find_spec("pgadmin4").origin or "") or \\
    list(importlib.util.find_spec("pgadmin4").submodule_search_locations)[0]
sys.path.insert(0, folder)
import config
for name, value in {"DATA_DIR": ".", "LOG_FILE": "log", "SQLITE_PATH": "pgadmin.db",
                    "SESSION_DB_PATH": "sessions", "STORAGE_DIR": "storage",
                    "KERBEROS_CCACHE_DIR": "krb", "AZURE_CREDENTIAL_CACHE_DIR": "azure"}.items():
    setattr(config, name, os.path.abspath(value))
config.UPGRADE_CHECK_ENABLED = False
from pgAdmin4 import app
""",
        ["/", "/login", "/misc/ping", "/static/favicon.ico", "/browser/", "/help/",
         "/browser/js/messages.js", "/browser/js/endpoints.js", "/nowhere"],
        env={"PGADMIN_SETUP_EMAIL": "alice@example.com", "PGADMIN_SETUP_PASSWORD": "Alice123"},
    ),
    Application(
        "label-studio",
        ["label-studio"],
        """
import os, sys
sys.argv = ["label-studio"]
os.environ["DJANGO_SETTINGS_MODULE"] = "label_studio.core.settings.label_studio"
import label_studio
sys.path.insert(0, os.path.dirname(label_studio.__file__))
from django.core.wsgi import get_wsgi_application
app = get_wsgi_application()
""",
        ["/", "/user/login/", "/health", "/version", "/api/version", "/api/projects",
         "/static/css/main.css", "/docs/api/schema/?format=json", "/static/images/favicon.ico",
         "/data/upload/1/a.txt", "/react-app/main.js", "/nowhere"],
        prepare=["""
import os, subprocess, sys
import trial
from django.core.management import call_command
call_command("migrate", verbosity=0)
"""],
        env={"LABEL_STUDIO_BASE_DATA_DIR": "{data}", "COLLECT_ANALYTICS": "false",
             "LATEST_VERSION_CHECK": "false", "SENTRY_DSN": ""},
    ),
    Application(
        "mlflow",
        ["mlflow"],
        "from mlflow.server.fastapi_app import app\n",
        ["/", "/health", "/version", "/ajax-api/2.0/mlflow/experiments/get?experiment_id=0",
         _json("/api/2.0/mlflow/experiments/search", '{"max_results": 10}'),
         _json("/api/2.0/mlflow/runs/search", '{"experiment_ids": ["0"]}'),
         "/get-artifact?path=notes.txt&run_uuid={run}",
         "/ajax-api/2.0/mlflow/artifacts/list?run_id={run}",
         "/api/2.0/mlflow/runs/get?run_id={run}", "/server-info", "/nowhere"],
        asgi=True,
        prepare=["""
import mlflow
mlflow.set_tracking_uri("sqlite:///mlflow.db")
mlflow.create_experiment("trial", artifact_location="artifacts/trial")
mlflow.set_experiment("trial")
with mlflow.start_run() as run:
    mlflow.log_metric("loss", 0.5)
    mlflow.log_text("a line of notes\\n" * 9000, "notes.txt")
open("names", "w").write(f"run {run.info.run_id}\\n")
"""],
        env={"_MLFLOW_SERVER_FILE_STORE": "sqlite:///mlflow.db",
             "_MLFLOW_SERVER_REGISTRY_STORE": "sqlite:///mlflow.db",
             "_MLFLOW_SERVER_ARTIFACT_ROOT": "artifacts", "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
             "_MLFLOW_SERVER_ARTIFACT_DESTINATION": "artifacts"},
    ),
    Application(
        "marimo",
        ["marimo"],
        """
import marimo
app = marimo.create_asgi_app(quiet=True).with_app(path="/", root="notebook.py").build()
""",
        ["/", "/health", "/api/status", "/api/version", "/favicon.ico", "/manifest.json",
         "/logo.png", "/nowhere"],
        asgi=True,
        prepare=["""
open("notebook.py", "w").write('''
import marimo
app = marimo.App()

@app.cell
def _():
    import marimo as mo
    mo.md("# Trial")
    return
''')
"""],
    ),
    Application(
        "titiler",
        ["titiler.application"],
        "from titiler.application.main import app\n",
        ["/", "/healthz", "/api", "/api.html", "/cog/info?url={data}/cog.tif", "/cog/viewer",
         "/cog/statistics?url={data}/cog.tif", "/cog/preview.png?url={data}/cog.tif",
         "/cog/WebMercatorQuad/tilejson.json?url={data}/cog.tif",
         "/cog/tiles/WebMercatorQuad/0/0/0.png?url={data}/cog.tif", "/tileMatrixSets",
         "/colorMaps", "/conformance", "/algorithms", "/nowhere"],
        asgi=True,
        prepare=["""
import numpy, rasterio
from rasterio.transform import from_bounds
data = (numpy.arange(512 * 512).reshape(1, 512, 512) % 251).astype("uint8")
with rasterio.open("cog.tif", "w", driver="GTiff", width=512, height=512, count=1, dtype="uint8",
                   crs="EPSG:4326", transform=from_bounds(-10, -10, 10, 10, 512, 512),
                   tiled=True) as file:
    file.write(data)
"""],
    ),
    Application(
        "gradio",
        ["gradio"],
        """
import gradio
gradio.set_static_paths(paths=["files"])
with gradio.Blocks() as blocks:
    gradio.Markdown("# Trial")
    name = gradio.Textbox(label="name")
    out = gradio.Textbox(label="out")
    gradio.Image("image.png")
    name.change(lambda text: f"Hello {text}", name, out, api_name="hello")
blocks.queue()
from fastapi import FastAPI
app = gradio.mount_gradio_app(FastAPI(), blocks, path="/ui")
""",
        ["/ui/", "/ui/config", "/ui/gradio_api/info", "/ui/theme.css", "/ui/robots.txt",
         "/ui/gradio_api/startup-events", "/ui/gradio_api/app_id", "/ui/static/img/logo.svg",
         "/ui/gradio_api/file=files/model.bin",
         _json("/ui/gradio_api/run/hello", '{"data": ["World"]}'), "/nowhere"],
        asgi=True,
        prepare=["""
import os
from PIL import Image
os.makedirs("files", exist_ok=True)
open("files/model.bin", "wb").write(os.urandom(10_000_000))
Image.radial_gradient("L").save("image.png")
"""],
        env={"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_SSR_MODE": "False"},
    ),
    Application(
        "tiled",
        ["tiled[server]"],
        """
import numpy
from tiled.adapters.array import ArrayAdapter
from tiled.adapters.mapping import MapAdapter
from tiled.config import Authentication
from tiled.server.app import build_app
numbers = numpy.arange(90000).reshape(300, 300)
tree = MapAdapter({"numbers": ArrayAdapter.from_array(numbers),
                   "ones": ArrayAdapter.from_array(numpy.ones((5, 5)))})
app = build_app(tree, authentication=Authentication(allow_anonymous_access=True))
""",
        ["/", "/api/v1/", "/api/v1/metadata/", "/api/v1/search/", "/api/v1/metadata/numbers",
         "/api/v1/array/block/numbers?block=0,0", "/api/v1/array/full/numbers?format=text/csv",
         "/api/v1/array/full/numbers?format=application/json", "/healthz", "/docs",
         "/openapi.json", "/ui", "/api/v1/array/full/ones", "/nowhere"],
        asgi=True,
        env={"TILED_SINGLE_USER_API_KEY": "secret"},
    ),
    Application(
        "prefect",
        ["prefect"],
        """
from prefect.server.api.server import create_app
app = create_app()
""",
        ["/", "/api/health", "/api/version", "/api/ready", "/api/admin/version",
         "/api/admin/settings", "/docs", "/openapi.json", "/ui-settings", "/dashboard",
         _json("/api/flows/filter", '{"limit": 5}'), _json("/api/flow_runs/filter", "{}"),
         _json("/api/work_pools/filter", "{}"), "/api/collections/views/aggregate-worker-metadata",
         "/api/nowhere", "/favicon.ico"],
        asgi=True,
        prepare=["""
import asyncio
from prefect.server.database import provide_database_interface
asyncio.run(provide_database_interface().create_db())
"""],
        env={"PREFECT_HOME": "{data}/prefect", "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
             "DO_NOT_TRACK": "1", "PREFECT_API_DATABASE_CONNECTION_URL":
             "sqlite+aiosqlite:///{data}/prefect.db"},
    ),
    Application(
        "aim",
        ["aim"],
        "from aim.web.run import app\n",
        ["/", "/static-files/vs/loader.js", "/api/projects/", "/api/projects/params",
         "/api/experiments/", "/api/dashboards/", "/api/tags/", "/api/projects/activity",
         "/api/runs/search/run?q=", "/docs", "/nowhere"],
        asgi=True,
        prepare=["""
import aim
run = aim.Run(repo=".", experiment="trial")
for step in range(100):
    run.track(1 / (step + 1), name="loss", step=step)
run.close()
"""],
        env={"__AIM_UI_MOUNT_REPO_PATH__": "{data}", "AIM_TRACKING_DISABLED": "1"},
    ),
)  # fmt: skip
