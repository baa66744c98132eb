"""Who may reach whom by the network policies, and who has to."""

from manifests import KUBERNETES, parse, selects

# What finds names; any destination may be asked, since where name servers run differs.
NAMES = {("UDP", 53), ("TCP", 53)}
# Where Prometheus is, and who may call gateways from other namespaces, by README.md of deploy/k8s.
MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
CLIENTS = {"lockstep-client": "true"}
ANY = "any"


def prover_labels():
    (job,) = parse((KUBERNETES / "verify" / "job.yaml").read_text(encoding="utf-8"))
    return job["spec"]["template"]["metadata"]["labels"]


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


def calls_from_outside(cluster):
    """{(caller, callee, port)} that pods of nobody's role need."""
    gateway = ("gateway", cluster.workload("gateway").ports()["grpc"])
    worker = cluster.workload("worker")
    metrics = {("Prometheus", one.name, one.ports()["metrics"]) for one in cluster.workloads()}
    return metrics | {("a trainer beside it", *gateway), ("a trainer elsewhere", *gateway),
                      ("a prover", *gateway), ("a prover", "worker", worker.ports()["metrics"])}


def outsiders(cluster):
    """{name: (labels of the pod, labels of its namespace, whether that is the cluster's)}."""
    own = cluster.find("Namespace", cluster.namespace)["metadata"].get("labels", {})
    return {"a trainer beside it": ({}, own, True), "a prover": (prover_labels(), own, True),
            "a trainer elsewhere": ({}, CLIENTS, False),
            "Prometheus": ({}, MONITORING, False), "a stranger": ({}, {}, False)}


def policies_of(cluster):
    return [one["spec"] for one in cluster.of_kind("NetworkPolicy")]


def policies_on(cluster, labels):
    return [one for one in policies_of(cluster) if selects(one["podSelector"], labels)]


def _ports(rule):
    found = []
    for one in rule.get("ports", [{}]):
        port = one.get("port", ANY)
        ports = range(port, one["endPort"] + 1) if "endPort" in one else [port]
        found += [(one.get("protocol", "TCP"), each) for each in ports]
    return found


def _fits(peer, labels, namespace_labels, same_namespace):
    """Whether one entry of `from` or `to` means this pod."""
    if "namespaceSelector" in peer:
        place = selects(peer["namespaceSelector"], namespace_labels)
    else:
        place = same_namespace
    return place and selects(peer.get("podSelector", {}), labels)


def allowed(cluster, labels, direction, other):
    """Ports that policies on a pod with `labels` open for `other`, as outsiders() has it."""
    side = "from" if direction == "ingress" else "to"
    return {port for policy in policies_on(cluster, labels) for rule in policy.get(direction, [])
            for protocol, port in _ports(rule)
            if (side not in rule and (protocol, port) not in NAMES)
            or any(_fits(one, *other) for one in rule.get(side, []))}


def names(cluster):
    """Every pod may look names up, and send nothing else to just anybody."""
    for workload in cluster.workloads():
        ports = {port for policy in policies_on(cluster, workload.labels)
                 for rule in policy.get("egress", []) if "to" not in rule
                 for port in _ports(rule)}
        for port in sorted(NAMES - ports):
            yield f"{workload.name} cannot look names up by {port[0]}"
        for port in sorted(ports - NAMES, key=str):
            yield f"{workload.name} may send to everybody's {port[1]}"


def network(cluster):
    """Among the cluster's own pods: what is needed is allowed at both ends, and nothing else."""
    for workload in cluster.workloads():
        for policy in policies_on(cluster, workload.labels) or [{"policyTypes": []}]:
            if set(policy["policyTypes"]) != {"Ingress", "Egress"}:
                yield f"what no policy names is allowed to {workload.name}"
    edges = {"ingress": set(), "egress": set()}
    for one in cluster.workloads():
        for other in cluster.workloads():
            # A role's own rules name pods; that all of the namespace may call gateways is a
            # matter of outsiders.
            there = (other.labels, {}, True)
            edges["ingress"] |= {(other.name, one.name, port)
                                 for port in allowed(cluster, one.labels, "ingress", there)}
            edges["egress"] |= {(one.name, other.name, port)
                                for port in allowed(cluster, one.labels, "egress", there)}
    for direction, found in edges.items():
        for edge in sorted(set(calls(cluster)) - found):
            yield "%s to %s:%d is not allowed as " % edge + direction
        for edge in sorted(found - set(calls(cluster)), key=str):
            yield "%s to %s:%s is allowed as " % edge + direction + " without need"


def outside(cluster):
    """Trainers, Prometheus and who proves come in where they have to; nobody is locked in, and the
    cluster's own pods send to nobody else."""
    needed, found = calls_from_outside(cluster), set()
    for name, who in outsiders(cluster).items():
        labels, _, same_namespace = who
        if same_namespace and policies_on(cluster, labels):
            yield f"{name} is bound by policies that are for the cluster's own pods"
        found |= {(name, one.name, port) for one in cluster.workloads()
                  for port in allowed(cluster, one.labels, "ingress", who)}
    own = [one.labels for one in cluster.workloads()]
    for workload in cluster.workloads():
        for peer in [peer for policy in policies_on(cluster, workload.labels)
                     for rule in policy.get("egress", []) for peer in rule.get("to", [])]:
            if set(peer) != {"podSelector"} or not any(selects(peer["podSelector"], labels)
                                                       for labels in own):
                yield f"{workload.name} sends to {peer} without need"
    for edge in sorted(needed - found):
        yield "%s cannot reach %s:%d" % edge
    for edge in sorted(found - needed, key=str):
        yield "%s reaches %s:%s without need" % edge
