FROM python:3.13-slim
COPY . /srv/shop
RUN pip install --no-cache-dir --requirement /srv/shop/requirements.txt
CMD ["wsgifast", "run", "--bind=0.0.0.0:8000", "/srv/shop/shop.py:app", "--", "--user=65534", "--group=65534"]
