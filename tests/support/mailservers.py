"""Mail servers of others, each started with a configuration for the test.

Debian's packages are enough. The system's configuration, spool and mailboxes are not touched. If
root runs them, the servers change to another user, because they handle no mail as root.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .programs import program
from .servers import LiveServer, free_port, live_server, wait_for

USER, PASSWORD = "anne", "secret"
# Deliveries by Exim to 250 recipients took more than 10 s on a busy machine.
DELIVERIES_S = 60.0


@dataclass
class Dovecot:
    """A running Dovecot with a mailbox for every user who knows the password."""

    server: LiveServer
    port: int
    tls_port: int


# Settings with different names in the two series of Dovecot.
_DOVECOT_2_3 = f"""\
disable_plaintext_auth = no
mail_location = maildir:{{folder}}/mail/%u
passdb {{{{
  driver = static
  args = password={PASSWORD}
}}}}
userdb {{{{
  driver = static
  args = uid={{owner.pw_uid}} gid={{owner.pw_gid}} home={{folder}}/mail/%u
}}}}"""
_DOVECOT_2_4 = f"""\
dovecot_config_version = 2.4.0
dovecot_storage_version = 2.4.0
auth_allow_cleartext = yes
mail_driver = maildir
mail_path = {{folder}}/mail/%{{{{user}}}}
passdb static {{{{
  password = {PASSWORD}
}}}}
userdb static {{{{
  fields {{{{
    uid = {{owner.pw_uid}}
    gid = {{owner.pw_gid}}
    home = {{folder}}/mail/%{{{{user}}}}
  }}}}
}}}}"""


@contextlib.contextmanager
def dovecot(*, certificate: tuple[Path, Path] | None = None) -> Iterator[Dovecot]:
    """Start Dovecot's IMAP server.

    :param certificate: files with the certificate and its key. Without them there is no TLS.
    """
    path = program("dovecot")
    port, tls_port = free_port(), free_port() if certificate else 0
    # This is not the test's own folder, since the path of a Unix socket must be shorter than 108
    # octets.
    with _mail_folder("wsgifast-imap-", "nobody") as (folder, owner):
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
        is_2_3 = version.stdout.startswith("2.3")
        tls = "ssl = no"
        if certificate:
            form = "ssl = yes\nssl_server_cert_file = {}\nssl_server_key_file = {}"
            if is_2_3:
                form = "ssl = yes\nssl_cert = <{}\nssl_key = <{}"
            tls = form.format(*certificate)
        config = folder / "dovecot.conf"
        own = (_DOVECOT_2_3 if is_2_3 else _DOVECOT_2_4).format(folder=folder, owner=owner)
        config.write_text(f"""\
{own}
base_dir = {folder}/run
state_dir = {folder}/run
log_path = /dev/stderr
protocols = imap
listen = 127.0.0.1
{tls}
default_internal_user = {owner.pw_name}
default_internal_group = {_group(owner)}
default_login_user = {owner.pw_name}
first_valid_uid = {owner.pw_uid}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = {tls_port}
    ssl = yes
  }}
}}
service anvil {{
  chroot =
}}
""")
        argv = [path, "-F", "-c", str(config)]
        with live_server(argv, ("127.0.0.1", port)) as server:
            yield Dovecot(server, port, tls_port)


@dataclass
class Exim:
    """A running Exim that delivers all mail into one folder. It rejects refused@...

    :ivar delivered: a Maildir. It stores lines with LF.
    """

    server: LiveServer
    port: int
    delivered: Path


@contextlib.contextmanager
def exim() -> Iterator[Exim]:
    """Start Exim, with PIPELINING, CHUNKING, SMTPUTF8 and 8BITMIME."""
    path = program("exim4")
    port = free_port()
    with _mail_folder("wsgifast-smtp-", "Debian-exim") as (folder, owner):
        config = folder / "exim.conf"
        config.write_text(f"""\
exim_user = {owner.pw_name}
exim_group = {_group(owner)}
never_users =
spool_directory = {folder}/mail/spool
log_file_path = {folder}/mail/%slog
pid_file_path = {folder}/mail/pid
primary_hostname = localhost
daemon_smtp_ports = {port}
local_interfaces = 127.0.0.1
disable_ipv6
rfc1413_query_timeout = 0s
pipelining_advertise_hosts = *
chunking_advertise_hosts = *
smtputf8_advertise_hosts = *
accept_8bitmime
message_size_limit = 100M
acl_smtp_rcpt = recipients
acl_smtp_mail = senders
begin acl
senders:
  deny senders = ^refused@
  accept
recipients:
  deny local_parts = refused
       message = no such user
  accept
begin routers
all:
  driver = accept
  transport = folder
begin transports
folder:
  driver = appendfile
  directory = {folder}/mail/delivered
  create_directory
  maildir_format
  user = {owner.pw_name}
  group = {_group(owner)}
""")
        config.chmod(0o644)
        argv = [path, "-bdf", "-q1h", "-C", str(config)]
        with live_server(argv, ("127.0.0.1", port)) as server:
            yield Exim(server, port, folder / "mail" / "delivered")


@contextlib.contextmanager
def _mail_folder(prefix: str, user: str) -> Iterator[tuple[Path, pwd.struct_passwd]]:
    """Make a folder with a short name.

    Return it, and the user who handles mail in its folder `mail`.

    :param user: that user, if this process is root's.
    """
    owner = pwd.getpwnam(user) if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        folder.chmod(0o755)
        mail = folder / "mail"
        mail.mkdir()
        if os.geteuid() == 0:
            os.chown(mail, owner.pw_uid, owner.pw_gid)
        yield folder, owner
    finally:
        # A running delivery outlives the server, and would create the folder again.
        what = f"no process uses {folder}"
        wait_for(lambda: not _used_by_processes(folder), what, DELIVERIES_S, interval=0.1)
        shutil.rmtree(folder)


def _used_by_processes(folder: Path) -> list[str]:
    """Return the command lines that name a folder. Those of all our mail servers do."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            lines.append(file.read_bytes().decode(errors="replace"))
    return [line for line in lines if str(folder) in line]


def _group(owner: pwd.struct_passwd) -> str:
    return grp.getgrgid(owner.pw_gid).gr_name
