"""What has to hold for every overlay beyond its form. Each policy yields findings as text."""

import re

from manifests import IMAGE_ROOT, ROOT, quantity, selects

# Made by the platform, not by the manifests.
OUTSIDE_CLAIMS = ("model",)
# Settings that name files of Secrets.
SECRET_FIELDS = ("certificate_file", "key_file", "authorities_file", "tokens_dir",
                 "metrics_tokens_dir")
# Of a worker without its KV: binary, weights of the demo model, activations.
WORKER_BASE_BYTES = 512 << 20


def hand_off_seconds():
    """What a drain takes after drain_finish_seconds, by the page of timeouts."""
    page = (ROOT / "docs" / "timeouts.md").read_text(encoding="utf-8")
    return float(re.search(r"^\| after that: hand off.*?\| (\d+) s \|", page, re.M).group(1))


def probes(cluster):
    for workload in cluster.workloads():
        for kind, service in (("startup", "started"), ("readiness", "ready"), ("liveness", "live")):
            probe = workload.main.get(f"{kind}Probe")
            if probe is None:
                yield f"{workload.name} has no {kind} probe"
                continue
            wanted = [f"{IMAGE_ROOT}/bin/lockstep", "health", f"--role={workload.name}",
                      *workload.main["args"], f"--service={service}"]
            command = probe["exec"]["command"]
            if command[:-1] != wanted:
                yield f"{workload.name}: {kind} probe runs {command}"
            if f"--timeout={probe['timeoutSeconds'] - 2}s" != command[-1]:
                yield f"{workload.name}: {kind} probe does not end before its timeout"


def security(cluster):
    for workload in cluster.workloads():
        pod = workload.pod
        if pod.get("securityContext", {}).get("runAsNonRoot") is not True:
            yield f"{workload.name} may run as root"
        if pod.get("securityContext", {}).get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{workload.name} has no seccomp profile"
        if pod.get("automountServiceAccountToken") is not False:
            yield f"{workload.name} gets a token of the API server"
        for one in workload.containers():
            if one.get("securityContext") != {"allowPrivilegeEscalation": False,
                                              "readOnlyRootFilesystem": True,
                                              "capabilities": {"drop": ["ALL"]}}:
                yield f"{workload.name}/{one['name']} is not confined"


def resources(cluster):
    for workload in cluster.workloads():
        for one in workload.containers():
            given = one.get("resources", {})
            for what in ("cpu", "memory"):
                for bound in ("requests", "limits"):
                    if what not in given.get(bound, {}):
                        yield f"{workload.name}/{one['name']} {bound} no {what}"
    worker = cluster.workload("worker")
    limits = worker.main.get("resources", {}).get("limits", {})
    ranks = int(worker.setting("tensor_parallel", 1))
    on_gpu = worker.setting("backend", "cpu") == "cuda"
    if int(limits.get("nvidia.com/gpu", 0)) != (ranks if on_gpu else 0):
        yield f"worker has {limits.get('nvidia.com/gpu', 0)} GPUs for {ranks} ranks"
    if not on_gpu:
        if quantity(limits.get("cpu", 0)) != int(worker.setting("threads", 0)):
            yield "worker's threads are not its cores"
        kv_bytes = ranks * int(worker.setting("kv_bytes", 256 << 20))
        if quantity(limits.get("memory", 0)) < WORKER_BASE_BYTES + kv_bytes:
            yield "worker's KV does not fit its memory"


def drain(cluster):
    for workload in cluster.workloads():
        stop = workload.main.get("lifecycle", {}).get("preStop")
        before = 0.0 if stop is None else float(stop["exec"]["command"][-1])
        needed = before + float(workload.setting("drain_finish_seconds", 30)) + hand_off_seconds()
        grace = workload.pod.get("terminationGracePeriodSeconds", 30)
        if grace < needed:
            yield f"{workload.name} is killed after {grace} s; its drain takes {needed:g} s"


def disruption(cluster):
    for workload in cluster.workloads():
        budgets = [one["spec"] for one in cluster.of_kind("PodDisruptionBudget")
                   if selects(one["spec"]["selector"], workload.labels)]
        if len(budgets) != 1:
            yield f"{workload.name} has {len(budgets)} disruption budgets"
            continue
        (budget,) = budgets
        away = budget.get("maxUnavailable", workload.replicas - budget.get("minAvailable", 0))
        if away < 1:
            yield f"{workload.name}: no node with it can be drained"
        if workload.replicas > 1 and away >= workload.replicas:
            yield f"{workload.name}: all pods may go at once"


def scheduling(cluster):
    for workload in cluster.workloads():
        for state in ("not-ready", "unreachable"):
            wanted = {"key": f"node.kubernetes.io/{state}", "operator": "Exists",
                      "effect": "NoExecute", "tolerationSeconds": 10}
            if wanted not in workload.pod.get("tolerations", []):
                yield f"{workload.name} stays long on a node that is {state}"
        if workload.replicas > 1 and not workload.pod.get("topologySpreadConstraints"):
            yield f"{workload.name} does not spread over nodes"
    scheduler = cluster.workload("scheduler").body["spec"]
    if (scheduler["replicas"], scheduler.get("strategy")) != (1, {"type": "Recreate"}):
        yield "two schedulers may run at once"
    if cluster.workload("worker").body["spec"].get("podManagementPolicy") != "Parallel":
        yield "workers start one after the other"


def volumes(cluster):
    for workload in cluster.workloads():
        mounted = set()
        for one in workload.containers():
            for mount in one.get("volumeMounts", []):
                mounted.add(mount["name"])
                if mount["name"] not in workload.volumes():
                    yield f"{workload.name}/{one['name']} mounts {mount['name']}, which is nowhere"
        for name, volume in workload.volumes().items():
            if name not in mounted:
                yield f"{workload.name}: nobody mounts {name}"
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and claim not in OUTSIDE_CLAIMS and not cluster.find("PersistentVolumeClaim",
                                                                          claim):
                yield f"{workload.name}: no claim {claim}"
            config = volume.get("configMap", {}).get("name")
            if config and not cluster.find("ConfigMap", config):
                yield f"{workload.name}: no config map {config}"
        for path, text in workload.config_files().items():
            if not text:
                yield f"{workload.name} has no {path}"


def variables(cluster):
    for workload in cluster.workloads():
        declared = set()
        for one in workload.containers():
            names = {variable["name"] for variable in one.get("env", [])}
            declared |= names
            words = " ".join(one.get("command", []) + one.get("args", []))
            for name in re.findall(r"\$\(?(\w+)\)?", words):
                if name not in names:
                    yield f"{workload.name}/{one['name']} uses ${name}, which it does not get"
        for name in re.findall(r"\$\{(\w+)\}", workload.config_text()):
            if name not in declared:
                yield f"{workload.name}: nobody replaces {name} in its configuration"


def paths(cluster):
    """Files in configurations and commands are on a volume or in the image."""
    for workload in cluster.workloads():
        mounts = {one["mountPath"]: one for one in workload.main.get("volumeMounts", [])}
        words = workload.main["args"] + workload.main["command"]
        read = [word.removeprefix("--config=") for word in words if "/" in word]
        for field in ("model", "tokenizer_dir", *SECRET_FIELDS):
            read += workload.config().get(field, [])
        for path in read:
            if not (path + "/").startswith((IMAGE_ROOT + "/", *(mount + "/" for mount in mounts))):
                yield f"{workload.name}: {path} is on no volume"
        for field in ("state_file", "certificates_path"):
            for path in workload.config().get(field, []):
                mount = mounts.get(path.rpartition("/")[0])
                if mount is None or mount.get("readOnly"):
                    yield f"{workload.name}: {path} cannot be written"


def trust(cluster):
    """All speak TLS, each with a Secret of its own, or all do not by choice."""
    choices = {workload.setting("plaintext", "false") for workload in cluster.workloads()}
    if len(choices) != 1:
        yield "some processes speak TLS and some do not"
    for workload in cluster.workloads():
        secrets = {one["secret"]["secretName"] for one in workload.volumes().values()
                   if "secret" in one}
        files = [field for field in SECRET_FIELDS[:3] if field in workload.config()]
        if workload.setting("plaintext", "false") == "true":
            if secrets or files:
                yield f"{workload.name} is plaintext and has {sorted(secrets) + files}"
            continue
        if len(files) != 3:
            yield f"{workload.name} chooses neither TLS nor plaintext"
        wanted = {f"{workload.name}-tls"} | (
            {f"{workload.name}-tokens"} if "tokens_dir" in workload.config() else set())
        if workload.setting("metrics_plaintext", "false") == "true":
            yield f"{workload.name} shows its metrics to everybody"
        if "metrics_tokens_dir" in workload.config():
            wanted.add("scraper-tokens")
        if secrets != wanted:
            yield f"{workload.name} has secrets {sorted(secrets)}, not {sorted(wanted)}"


def services(cluster):
    for service in cluster.of_kind("Service"):
        name, spec = service["metadata"]["name"], service["spec"]
        behind = [one for one in cluster.workloads()
                  if selects({"matchLabels": spec["selector"]}, one.labels)]
        if len(behind) != 1:
            yield f"service {name} has {len(behind)} workloads"
            continue
        for port in spec["ports"]:
            if behind[0].ports().get(port["targetPort"]) != port["port"]:
                yield f"service {name}: {behind[0].name} has no port {port['targetPort']}"
    for stateful in cluster.of_kind("StatefulSet"):
        service = cluster.find("Service", stateful["spec"]["serviceName"])
        if service is None or service["spec"].get("clusterIP") != "None":
            yield f"{stateful['metadata']['name']} has no headless service"


def listening(cluster):
    ids = set()
    for workload in cluster.workloads():
        ids.update(workload.config().get("cluster_id", [""]))
        for field, port in (("listen", "grpc"), ("metrics_listen", "metrics")):
            if workload.setting(field, "") != f"0.0.0.0:{workload.ports().get(port)}":
                yield f"{workload.name} does not listen on its port {port}"
        if workload.annotations.get("prometheus.io/scrape") != "true" or workload.annotations.get(
                "prometheus.io/port") != str(workload.ports().get("metrics")):
            yield f"{workload.name} is not scraped"
        scheme = "http" if workload.setting("plaintext", "false") == "true" else "https"
        if workload.annotations.get("prometheus.io/scheme") != scheme:
            yield f"{workload.name} is not scraped by {scheme}"
    if len(ids) != 1:
        yield f"processes disagree on cluster_id: {sorted(ids)}"
    advertised = cluster.workload("worker").setting("advertise", "")
    if advertised != "${POD_IP}:%d" % cluster.workload("worker").ports()["grpc"]:
        yield f"worker advertises {advertised}"


def calls(cluster):
    """(caller, callee, port): what configurations name, and what goes by registered address."""
    worker_port = cluster.workload("worker").ports()["grpc"]
    found = {("router", "worker", worker_port), ("scheduler", "worker", worker_port)}
    for workload in cluster.workloads():
        for address in workload.config().get("routers", []) + workload.config().get(
                "scheduler", []):
            name, _, port = address.removeprefix("dns:///").partition(":")
            found.add((workload.name, name, int(port)))
    return sorted(found)


def peers(cluster):
    for caller, callee, port in calls(cluster):
        service = cluster.find("Service", callee)
        if service is None or port not in [one["port"] for one in service["spec"]["ports"]]:
            yield f"{caller} names {callee}:{port}, which no service has"
        elif service["spec"].get("clusterIP") != "None":
            yield f"{caller} names {callee}, whose address would pin its connection to one pod"
    for workload in cluster.workloads():
        for field in ("routers", "scheduler"):
            for address in workload.config().get(field, []):
                if not address.startswith("dns:///"):
                    yield f"{workload.name} calls {address} without dns:///"


def network(cluster):
    policies = [one["spec"] for one in cluster.of_kind("NetworkPolicy")]
    if not any(one["podSelector"] == {} and set(one["policyTypes"]) == {"Ingress", "Egress"}
               for one in policies):
        yield "what no policy names is allowed"
    allowed = {"ingress": set(), "egress": set()}
    for policy in policies:
        for workload in cluster.workloads():
            if policy["podSelector"] == {} or not selects(policy["podSelector"], workload.labels):
                continue
            for direction, side in (("ingress", "from"), ("egress", "to")):
                for rule in policy.get(direction, []):
                    for other in cluster.workloads():
                        if any(selects(one["podSelector"], other.labels)
                               for one in rule[side] if "podSelector" in one):
                            pair = (other.name, workload.name)
                            allowed[direction] |= {
                                (*(pair if direction == "ingress" else pair[::-1]), one["port"])
                                for one in rule["ports"]}
    for direction, edges in allowed.items():
        for edge in sorted(set(calls(cluster)) - edges):
            yield "%s to %s:%d is not allowed as " % edge + direction
        for edge in sorted(edges - set(calls(cluster))):
            yield "%s to %s:%d is allowed as " % edge + direction + " without need"


POLICIES = (probes, security, resources, drain, disruption, scheduling, volumes, variables, paths,
            trust, services, listening, peers, network)


def findings(cluster):
    return [finding for policy in POLICIES for finding in policy(cluster)]
