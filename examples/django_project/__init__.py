"""A Django project: polls, admin, login, uploads, downloads, an export, static and media files.

    cd examples/django_project
    python manage.py migrate && python manage.py createsuperuser && python manage.py collectstatic
    python manage.py runserver

From the root of the checkout:

    gunicorn -k wsgifast.workers.FastWorker examples.django_project.wsgi:application
    uvicorn --http asgifast.uvicorn:HttpToolsProtocol examples.django_project.asgi:application
"""
