"""As much of a Kubernetes API server as who scrapes pods asks of it: the pods of one namespace, in
a list and then as they change, for who has the token."""

import http.server
import json
import ssl
import threading
import urllib.parse

# A watch that lasts longer is ended, and the client asks again.
WATCH_SECONDS = 300


def object_of(pod, phase="Running"):
    """What a kubelet says of a pod of pods.py."""
    template = pod.workload.body["spec"]["template"]
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": pod.name, "namespace": pod.workload.cluster.namespace,
                     "uid": f"{pod.name}-{pod.address}",
                     "labels": pod.workload.labels, "annotations": pod.workload.annotations},
        "spec": {**template["spec"], "nodeName": "node-1"},
        "status": {"phase": phase, "podIP": pod.address, "hostIP": "192.0.2.1",
                   "conditions": [{"type": "Ready", "status": str(phase == "Running")}]}}


class KubernetesApi:
    """Serves by TLS at `address` until the end of the `with`."""

    def __init__(self, host, tls, token):
        self.token = token
        self.asked = set()  # namespaces whose pods somebody asked for
        self.refused = []  # what nobody who scrapes pods of that namespace should ask for
        self._objects = {}  # by namespace and name
        self._events = []  # (type, object), whose version is their number
        self._changed = threading.Condition()
        self._ended = False
        self._server = http.server.ThreadingHTTPServer((host, 0), _Handler)
        self._server.daemon_threads = True
        self._server.api = self
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.address = f"{host}:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def put(self, one):
        key = one["metadata"]["namespace"], one["metadata"]["name"]
        with self._changed:
            self._append("MODIFIED" if key in self._objects else "ADDED", one)
            self._objects[key] = one

    def remove(self, one):
        with self._changed:
            del self._objects[one["metadata"]["namespace"], one["metadata"]["name"]]
            self._append("DELETED", one)

    def _append(self, kind, one):
        one["metadata"]["resourceVersion"] = str(len(self._events) + 1)
        self._events.append((kind, json.loads(json.dumps(one))))
        self._changed.notify_all()

    def listed(self, wanted):
        with self._changed:
            return {"kind": "PodList", "apiVersion": "v1",
                    "metadata": {"resourceVersion": str(len(self._events))},
                    "items": [one for one in self._objects.values() if wanted(one)]}

    def changes(self, version, wanted):
        """Yields what happened after `version`, and what happens."""
        while True:
            with self._changed:
                if not self._changed.wait_for(
                        lambda: self._ended or len(self._events) > version, WATCH_SECONDS):
                    return
                if self._ended:
                    return
                new = self._events[version:]
                version += len(new)
            for kind, one in new:
                if wanted(one):
                    yield {"type": kind, "object": one}


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        api = self.server.api
        url = urllib.parse.urlsplit(self.path)
        asked = dict(urllib.parse.parse_qsl(url.query))
        if self.headers.get("Authorization") != f"Bearer {api.token}":
            return self._refuse(401)
        words = url.path.strip("/").split("/")
        if words[:3] != ["api", "v1", "namespaces"] or words[4:] != ["pods"]:
            return self._refuse(403)

        api.asked.add(words[3])

        def wanted(one):
            labels = one["metadata"]["labels"]
            terms = [term.split("=", 1) for term in
                     filter(None, asked.get("labelSelector", "").split(","))]
            return (one["metadata"]["namespace"] == words[3]
                    and all(labels.get(key) == value for key, value in terms))

        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if asked.get("watch") in (None, "0", "false"):
            return self._write(api.listed(wanted))
        for change in api.changes(int(asked.get("resourceVersion") or 0), wanted):
            self._write(change)

    def _write(self, one):
        self.wfile.write(json.dumps(one).encode() + b"\n")
        self.wfile.flush()

    def _refuse(self, code):
        self.server.api.refused.append((code, self.path))
        self.send_error(code)

    def log_message(self, *_):
        """Says nothing."""
