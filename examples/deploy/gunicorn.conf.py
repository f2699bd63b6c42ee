"""gunicorn's settings, for a container or a host."""

import os

bind = "0.0.0.0:8000"
worker_class = "wsgifast.workers.FastWorker"
workers = int(os.environ.get("WEB_CONCURRENCY", "2"))
threads = 4
# Keep idle connections open for longer than nginx does. Otherwise nginx might send a request on a
# connection that gunicorn is closing.
keepalive = 75
# The heartbeat is a file. In memory, it does not wait for the container's slow file system.
worker_tmp_dir = "/dev/shm"
accesslog = "-"
access_log_format = '%(h)s "%(r)s" %(s)s %(B)s %({wsgifast.sent_as}e)s %(M)sms'
