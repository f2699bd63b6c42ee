"""Simulate visitors of the shop. Run it with: locust -f locustfile.py -H http://127.0.0.1:8000"""

from locust import HttpUser, between, task


class Visitor(HttpUser):
    wait_time = between(0.1, 1.0)

    @task(10)
    def index(self) -> None:
        self.client.get("/")

    @task(3)
    def orders(self) -> None:
        self.client.get("/orders")

    @task(1)
    def export(self) -> None:
        self.client.get("/orders.csv")

    @task(1)
    def download(self) -> None:
        with self.client.get("/manual.bin", headers={"Range": "bytes=0-1048575"}) as response:
            assert response.status_code == 206, response.status_code

    @task(1)
    def upload(self) -> None:
        self.client.post("/upload", data=b"x" * 100_000)
