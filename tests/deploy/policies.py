"""What has to hold for every overlay beyond its form. Each policy yields findings as text."""

import re

import reach
from manifests import IMAGE_ROOT, ROOT, quantity, selects

# Made by who operates it, not by the manifests.
OUTSIDE_CLAIMS = ("model",)
OUTSIDE_CONFIG_MAPS = ("authorities",)
# Settings that name files of Secrets.
SECRET_FIELDS = ("certificate_file", "key_file", "authorities_file", "tokens_dir",
                 "metrics_tokens_dir")
# Of a worker without its KV: binary, weights of the demo model, activations.
WORKER_BASE_BYTES = 512 << 20
# Of one whose KV and weights are on a GPU: libraries, tables of the driver, what is read ahead.
GPU_WORKER_BASE_BYTES = 4 << 30
# Of all others, and of what starts before a process.
BASE_BYTES = 256 << 20
# What a gateway keeps of finished answers, and it and a router of prompts, unless told otherwise.
RESULT_BYTES_MAX = PROMPT_BYTES_MAX = 256 << 20
# A start may take this long. On GPUs there are weights to load and kernels to certify.
STARTUP_SECONDS, WORKER_STARTUP_SECONDS, GPU_STARTUP_SECONDS = 60, 120, 600
# Between the last address that a name gives and the last caller that has looked it up, where name
# servers keep no answer for longer.
NAME_SECONDS = 5


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


def patience(cluster):
    """A slow start is no fault, nor is one answer that did not come; a lasting silence is."""
    for workload in cluster.workloads():
        needed = {"startup": STARTUP_SECONDS, "liveness": 30, "readiness": 10}
        if workload.name == "worker":
            needed["startup"] = GPU_STARTUP_SECONDS if on_gpu(workload) else WORKER_STARTUP_SECONDS
        for kind, seconds in needed.items():
            probe = workload.main.get(f"{kind}Probe", {})
            tries = probe.get("failureThreshold", 3)
            given = tries * probe.get("periodSeconds", 10)
            if tries < 2 or given < seconds:
                yield f"{workload.name}: {kind} fails after {given} s; it may take {seconds} s"
            if kind != "startup" and given > 60:
                yield f"{workload.name}: {kind} takes {given} s to fail"
            if probe.get("initialDelaySeconds"):
                yield f"{workload.name}: {kind} begins late; the startup probe gives that time"


def security(cluster):
    for workload in cluster.workloads():
        pod = workload.pod
        if pod.get("securityContext", {}).get("runAsNonRoot") is not True:
            yield f"{workload.name} may run as root"
        if pod.get("securityContext", {}).get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{workload.name} has no seccomp profile"
        context = pod.get("securityContext", {})
        if not context.get("runAsUser") or not context.get("runAsGroup"):
            yield f"{workload.name} has no user of its own"
        if not context.get("fsGroup") or context["fsGroup"] != context.get("runAsGroup"):
            yield f"{workload.name} cannot use its volumes"
        if pod.get("automountServiceAccountToken") is not False:
            yield f"{workload.name} gets a token of the API server"
        for one in workload.containers():
            if one.get("securityContext") != {"allowPrivilegeEscalation": False,
                                              "readOnlyRootFilesystem": True,
                                              "capabilities": {"drop": ["ALL"]}}:
                yield f"{workload.name}/{one['name']} is not confined"
    labels = cluster.find("Namespace", cluster.namespace)["metadata"].get("labels", {})
    if labels.get("pod-security.kubernetes.io/enforce") != "restricted":
        yield "the namespace takes pods that are not confined"


def on_gpu(worker):
    return worker.setting("backend", "cpu") == "cuda"


def memory_needed(workload):
    """Bytes that the limit of the main container has to be at least."""
    if workload.name in ("gateway", "router"):
        prompts = int(workload.setting("prompt_bytes_max", PROMPT_BYTES_MAX))
        results = workload.setting("result_bytes_max", RESULT_BYTES_MAX)
        return BASE_BYTES + prompts + (int(results) if workload.name == "gateway" else 0)
    if workload.name != "worker":
        return BASE_BYTES
    if on_gpu(workload):
        return GPU_WORKER_BASE_BYTES
    ranks = int(workload.setting("tensor_parallel", 1))
    return WORKER_BASE_BYTES + ranks * int(workload.setting("kv_bytes", 256 << 20))


def resources(cluster):
    for workload in cluster.workloads():
        for one in workload.containers():
            given = one.get("resources", {})
            for what in ("cpu", "memory"):
                for bound in ("requests", "limits"):
                    if what not in given.get(bound, {}):
                        yield f"{workload.name}/{one['name']} {bound} no {what}"
            for what, amount in given.get("requests", {}).items():
                if quantity(amount) > quantity(given.get("limits", {}).get(what, "1000000Gi")):
                    yield f"{workload.name}/{one['name']} requests more {what} than its limit"
            needed = memory_needed(workload) if one is workload.main else BASE_BYTES
            for bound in ("requests", "limits"):
                floor = needed if bound == "limits" else BASE_BYTES
                if quantity(given.get(bound, {}).get("memory", 0)) < floor:
                    yield f"{workload.name}/{one['name']}: its memory needs {floor} in {bound}"
    worker = cluster.workload("worker")
    limits = worker.main.get("resources", {}).get("limits", {})
    ranks = int(worker.setting("tensor_parallel", 1))
    if int(limits.get("nvidia.com/gpu", 0)) != (ranks if on_gpu(worker) else 0):
        yield f"worker has {limits.get('nvidia.com/gpu', 0)} GPUs for {ranks} ranks"
    if not on_gpu(worker) and quantity(limits.get("cpu", 0)) != int(worker.setting("threads", 0)):
        yield "worker's threads are not its cores"


def drain(cluster):
    for workload in cluster.workloads():
        stop = workload.main.get("lifecycle", {}).get("preStop")
        before = 0.0 if stop is None else float(stop["exec"]["command"][-1])
        # These are called by their names and there are others that can be called instead.
        if workload.name in ("gateway", "router") and before < NAME_SECONDS:
            yield f"{workload.name} is called until it ends, since nothing comes before SIGTERM"
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
        if budget.get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            yield f"{workload.name}: a pod that is not ready keeps its node from being drained"
        # However many there are: a number that has to stay would let all others go at once.
        if budget.get("maxUnavailable") != 1:
            yield f"{workload.name}: more than one pod may go at a time, or none"


def scheduling(cluster):
    for workload in cluster.workloads():
        for state in ("not-ready", "unreachable"):
            wanted = {"key": f"node.kubernetes.io/{state}", "operator": "Exists",
                      "effect": "NoExecute", "tolerationSeconds": 10}
            if wanted not in workload.pod.get("tolerations", []):
                yield f"{workload.name} stays long on a node that is {state}"
        spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                  "whenUnsatisfiable": "ScheduleAnyway",
                  "labelSelector": workload.body["spec"]["selector"]}
        if workload.replicas > 1 and workload.pod.get("topologySpreadConstraints") != [spread]:
            yield f"{workload.name} does not spread over nodes"
        if not selects(workload.body["spec"]["selector"], workload.labels):
            yield f"{workload.name} does not find its own pods"
        rolling = workload.body["spec"].get("strategy", {}).get("rollingUpdate", {})
        if workload.name in ("gateway", "router") and (
                rolling.get("maxUnavailable") != 0 or not rolling.get("maxSurge")):
            yield f"{workload.name} is rolled with less capacity, or not at all"
    scheduler = cluster.workload("scheduler").body["spec"]
    if (scheduler["replicas"], scheduler.get("strategy")) != (1, {"type": "Recreate"}):
        yield "two schedulers may run at once"
    worker = cluster.workload("worker")
    if worker.body["spec"].get("podManagementPolicy") != "Parallel":
        yield "workers start one after the other"
    update = worker.body["spec"].get("updateStrategy", {})
    if update.get("type", "RollingUpdate") != "RollingUpdate" or update.get(
            "rollingUpdate", {}).get("partition"):
        yield "a new image or configuration rolls not all workers"
    # What keeps other pods off the nodes that have GPUs.
    taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    if on_gpu(worker) and taint not in worker.pod.get("tolerations", []):
        yield "worker may not run where GPUs are"


def images(cluster):
    """The one with CUDA where workers run on GPUs; all processes are of one build."""
    wanted = "lockstep:" + ("cuda" if on_gpu(cluster.workload("worker")) else "cpu")
    for workload in cluster.workloads():
        for one in workload.containers():
            if one["image"] != wanted:
                yield f"{workload.name}/{one['name']} is {one['image']}, not {wanted}"


def written(workload):
    """Folders in which the process makes files."""
    return {path.rpartition("/")[0] for field in ("state_file", "certificates_path")
            for path in workload.config().get(field, [])}


def claims(cluster):
    """What is written to a claim of ours may be written there, by as many nodes as pods run on."""
    for workload in cluster.workloads():
        for volume in workload.volumes().values():
            of = volume.get("persistentVolumeClaim", {})
            claim = cluster.find("PersistentVolumeClaim", of.get("claimName"))
            if claim is None:
                continue
            modes = set(claim["spec"]["accessModes"])
            usable = {"ReadWriteMany"} | (
                {"ReadWriteOnce", "ReadWriteOncePod"} if workload.replicas == 1 else set())
            if of.get("readOnly") or not modes <= usable:
                yield f"{workload.name} cannot write {of['claimName']}, whose modes are {modes}"
    scheduler = cluster.workload("scheduler")
    folders = [path.rpartition("/")[0] for path in scheduler.config().get("state_file", [])]
    kept = [mount["mountPath"] for mount in scheduler.main["volumeMounts"]
            if "subPathExpr" not in mount  # A folder of each pod's own.
            and "persistentVolumeClaim" in scheduler.volumes().get(mount["name"], {})]
    if len(folders) != 1 or folders[0] not in kept:
        yield "the scheduler's state ends with its pod"


def volumes(cluster):
    for workload in cluster.workloads():
        mounted = set()
        for one in workload.containers():
            for mount in one.get("volumeMounts", []):
                mounted.add(mount["name"])
                if not mount.get("readOnly") and mount["mountPath"] not in written(workload):
                    yield f"{workload.name}/{one['name']} may write {mount['mountPath']}"
                if mount["name"] not in workload.volumes():
                    yield f"{workload.name}/{one['name']} mounts {mount['name']}, which is nowhere"
                # What is mounted by a part of its path stays as it was when the pod began.
                if {"subPath", "subPathExpr"} & set(mount) and {"secret", "configMap"} & set(
                        workload.volumes().get(mount["name"], {})):
                    yield f"{workload.name}/{one['name']} never sees {mount['name']} change"
        for name, volume in workload.volumes().items():
            if name not in mounted:
                yield f"{workload.name}: nobody mounts {name}"
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and claim not in OUTSIDE_CLAIMS and not cluster.find("PersistentVolumeClaim",
                                                                          claim):
                yield f"{workload.name}: no claim {claim}"
            config = volume.get("configMap", {}).get("name")
            if config and config not in OUTSIDE_CONFIG_MAPS:
                if not cluster.find("ConfigMap", config):
                    yield f"{workload.name}: no config map {config}"
                if not re.search("-[a-z0-9]{10}$", config):
                    yield f"{workload.name}: a change of {config} rolls no pod"
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
        for one in workload.containers():
            mounts = {mount["mountPath"]: mount for mount in one.get("volumeMounts", [])}
            words = one.get("args", []) + one["command"]
            read = [re.sub("^--[a-z]+=", "", word) for word in words if "/" in word]
            for field in ("model", "tokenizer_dir", *SECRET_FIELDS):
                read += workload.config().get(field, []) if one is workload.main else []
            for path in read:
                if not (path + "/").startswith((IMAGE_ROOT + "/",
                                                *(mount + "/" for mount in mounts))):
                    yield f"{workload.name}/{one['name']}: {path} is on no volume"
        for field in ("state_file", "certificates_path"):
            for path in workload.config().get(field, []):
                mount = mounts.get(path.rpartition("/")[0])
                if mount is None or mount.get("readOnly"):
                    yield f"{workload.name}: {path} cannot be written"


def model(cluster):
    """All read the same one."""
    place = cluster.workload("worker").setting("model", "")
    ranks = cluster.workload("worker").setting("tensor_parallel", "1")
    if cluster.workload("gateway").setting("tokenizer_dir", "") != place:
        yield f"the gateways' tokenizer is not that of {place}"
    for one in cluster.workload("worker").pod.get("initContainers", []):
        if "--check_files" not in one["args"]:
            yield f"{one['name']} does not look at the model's files"
        if f"--model={place}" not in one["args"]:
            yield f"{one['name']} looks at another model than {place}"
        looked = [word.partition("=")[2] for word in one["args"]
                  if word.startswith("--tensor_parallel=")] or ["1"]
        if looked != [ranks]:
            yield f"{one['name']} looks at {looked} ranks, of which a worker has {ranks}"


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
            if secrets or files or "authorities" in workload.volumes():
                yield f"{workload.name} is plaintext and has {sorted(secrets) + files}"
            continue
        # A Secret with a certificate is written anew by who issues it, and its ca.crt with it.
        own, *_ = workload.config().get("certificate_file", [""])
        for path in workload.config().get("authorities_file", []):
            if path.rpartition("/")[0] == own.rpartition("/")[0]:
                yield f"{workload.name} trusts only whoever its own certificate is of"
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
        # Workers are called by the addresses that they register.
        if spec.get("publishNotReadyAddresses") and behind[0].name != "worker":
            yield f"service {name} names pods that take no work"
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


def peers(cluster):
    for caller, callee, port in reach.calls(cluster):
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


POLICIES = (probes, patience, security, resources, drain, disruption, scheduling, images, claims,
            volumes, variables, paths, model, trust, services, listening, peers, reach.names,
            reach.network, reach.outside)


def findings(cluster):
    return [finding for policy in POLICIES for finding in policy(cluster)]
