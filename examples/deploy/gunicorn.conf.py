"""gunicorn's settings, in a container and outside."""

import os

bind = "0.0.0.0:8000"
worker_class = "wsgifast.workers.FastWorker"
workers = int(os.environ.get("WEB_CONCURRENCY", "2"))
threads = 4
# A little longer than nginx keeps an idle connection to us.
keepalive = 75
# The heartbeat is a file: not on a layered file system.
worker_tmp_dir = "/dev/shm"
accesslog = "-"
access_log_format = '%(h)s "%(r)s" %(s)s %(B)s %({wsgifast.sent_as}e)s %(M)sms'
