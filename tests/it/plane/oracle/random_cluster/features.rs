//! Features of pending pods: one function for each constraint.

use outrigger::model::labels::{ARCH, CAPACITY_TYPE, HOSTNAME, INSTANCE_TYPE, ZONE};
use serde_json::{Value, json};

use super::volumes::{self, Volume};
use super::{Chance, RACK};
use crate::plane::oracle::fixture::{CPU, Deployment, NAMESPACES, Owned, Tags};

/// A deployment under construction.
pub(super) struct Draft {
    labels: Value,
    spec: Value,
    pub(super) volumes: Vec<Volume>,
    seed: u64,
}

type Feature = fn(&mut Chance, &mut Draft);

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Every constraint of pods by its name.
pub(super) const FEATURES: &[(&str, Feature)] = &[
    ("init containers", |chance, own| {
        let cpu = chance.of(&["1", "3"]);
        init(own, cpu, None);
    }),
    ("restartable init containers", |chance, own| {
        let cpu = chance.of(&["500m", "1"]);
        init(own, cpu, Some("Always"));
        if chance.one_in(2) {
            init(own, "2", None);
        }
    }),
    ("resources of the pod", |chance, own| {
        own.spec["resources"]["requests"] = json!({"cpu": chance.of(&["5", "6"]), "memory": "6Gi"});
    }),
    ("overhead", |_, own| {
        own.spec["runtimeClassName"] = "thick".into();
    }),
    ("extended resources", |chance, own| {
        device(own, "example.com/dev", chance.of(&["1", "2"]));
    }),
    ("GPUs", |_, own| device(own, "nvidia.com/gpu", "1")),
    ("huge pages", |chance, own| {
        device(own, "hugepages-2Mi", chance.of(&["64Mi", "128Mi"]));
    }),
    ("ephemeral storage", |chance, own| {
        let amount = chance.of(&["4Gi", "11Gi", "30Gi"]);
        own.spec["containers"][0]["resources"]["requests"]["ephemeral-storage"] = amount.into();
    }),
    ("limits without requests", |_, own| {
        let limits = json!({"limits": {"cpu": "1500m", "memory": "1Gi"}});
        own.spec["containers"][0]["resources"] = limits;
    }),
    ("host ports", |chance, own| port(chance, own, "", "TCP")),
    ("host ports with an address", |chance, own| {
        let address = chance.of(&["10.0.0.1", "10.0.0.2", "0.0.0.0"]);
        port(chance, own, address, "TCP");
    }),
    ("host ports of a protocol", |chance, own| {
        let protocol = chance.of(&["UDP", "SCTP"]);
        port(chance, own, "", protocol);
    }),
    ("node selectors", |chance, own| {
        let (key, value) = a_label(chance);
        own.spec["nodeSelector"][key] = value.into();
    }),
    ("node affinity In", |chance, own| {
        let (key, value) = a_label(chance);
        require(chance, own, &json!({"key": key, "operator": "In", "values": [value]}));
    }),
    ("node affinity NotIn", |chance, own| {
        let (key, value) = a_label(chance);
        require(chance, own, &json!({"key": key, "operator": "NotIn", "values": [value]}));
    }),
    ("node affinity Exists", |chance, own| {
        let key = chance.of(&[RACK, "team", ZONE]);
        require(chance, own, &json!({"key": key, "operator": "Exists"}));
    }),
    ("node affinity DoesNotExist", |chance, own| {
        let key = chance.of(&[RACK, "team"]);
        require(chance, own, &json!({"key": key, "operator": "DoesNotExist"}));
    }),
    ("node affinity Gt", |chance, own| {
        let values = [chance.of(&["3", "7"])];
        require(chance, own, &json!({"key": CPU, "operator": "Gt", "values": values}));
    }),
    ("node affinity Lt", |chance, own| {
        let values = [chance.of(&["5", "9"])];
        require(chance, own, &json!({"key": CPU, "operator": "Lt", "values": values}));
    }),
    ("node affinity by name", |chance, own| {
        let node = format!("w{}-s{}", own.seed, chance.up_to(1));
        let operator = chance.of(&["In", "NotIn"]);
        let field = json!({"key": "metadata.name", "operator": operator, "values": [node]});
        let terms = &mut own.spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"];
        match terms.as_array_mut() {
            Some(terms) => terms.push(json!({"matchFields": [field]})),
            None => *terms = json!([{"matchFields": [field]}]),
        }
    }),
    ("preferred node affinity", |chance, own| {
        let (key, value) = a_label(chance);
        let term = json!({"matchExpressions": [
            {"key": key, "operator": "In", "values": [value]}]});
        own.spec["affinity"]["nodeAffinity"][PREFERRED] =
            json!([{"weight": 5, "preference": term}]);
    }),
    ("tolerations Equal", |chance, own| {
        let value = chance.of(&["x", ""]);
        let all = json!({"key": "dedicated", "operator": "Equal", "value": value});
        tolerate(chance, own, all);
    }),
    ("tolerations Exists", |chance, own| {
        tolerate(chance, own, json!({"key": "dedicated", "operator": "Exists"}));
    }),
    ("tolerations Lt and Gt", |chance, own| {
        let operator = chance.of(&["Lt", "Gt"]);
        let value = chance.of(&["3", "7", "-1"]);
        let all = json!({"key": "dedicated", "operator": operator, "value": value});
        tolerate(chance, own, all);
    }),
    ("tolerations of everything", |_, own| {
        own.spec["tolerations"] = json!([{"operator": "Exists"}]);
    }),
    ("pod affinity", |chance, own| {
        let term = term(chance);
        own.spec["affinity"]["podAffinity"][REQUIRED] = json!([term]);
    }),
    ("pod anti-affinity", |chance, own| {
        let term = term(chance);
        own.spec["affinity"]["podAntiAffinity"][REQUIRED] = json!([term]);
    }),
    ("preferred pod affinity", |chance, own| {
        let term = term(chance);
        own.spec["affinity"]["podAffinity"][PREFERRED] =
            json!([{"weight": 7, "podAffinityTerm": term}]);
    }),
    ("preferred pod anti-affinity", |chance, own| {
        let term = term(chance);
        own.spec["affinity"]["podAntiAffinity"][PREFERRED] =
            json!([{"weight": 7, "podAffinityTerm": term}]);
    }),
    ("affinity to namespaces", |chance, own| {
        let names = chance.of(&[&["one"][..], &["one", "two"], &["three"]]);
        near_or_far(chance, own, "namespaces", &json!(names));
    }),
    ("affinity to labels of namespaces", |chance, own| {
        let selector = chance.of(&[
            json!({"matchLabels": {"team": "x"}}),
            json!({"matchExpressions": [{"key": "team", "operator": "Exists"}]}),
        ]);
        near_or_far(chance, own, "namespaceSelector", &selector);
    }),
    ("affinity with matchLabelKeys", |chance, own| {
        near_or_far(chance, own, "matchLabelKeys", &json!(["rev"]));
    }),
    ("affinity with mismatchLabelKeys", |chance, own| {
        near_or_far(chance, own, "mismatchLabelKeys", &json!(["rev"]));
    }),
    ("spread over hosts", |chance, own| spread(chance, own, HOSTNAME)),
    ("spread over zones", |chance, own| spread(chance, own, ZONE)),
    ("spread over capacity types", |chance, own| spread(chance, own, CAPACITY_TYPE)),
    ("spread over any label", |chance, own| spread(chance, own, RACK)),
    ("spread ScheduleAnyway", |chance, own| {
        let key = a_place(chance);
        spread(chance, own, key);
        last_spread(own)["whenUnsatisfiable"] = "ScheduleAnyway".into();
    }),
    ("spread with maxSkew", |chance, own| {
        let key = a_place(chance);
        spread(chance, own, key);
        last_spread(own)["maxSkew"] = chance.of(&[2, 3]).into();
    }),
    ("spread with minDomains", |chance, own| {
        let key = a_place(chance);
        spread(chance, own, key);
        last_spread(own)["minDomains"] = chance.of(&[2, 3, 4]).into();
    }),
    ("spread with nodeAffinityPolicy", |chance, own| {
        let key = a_place(chance);
        spread(chance, own, key);
        last_spread(own)["nodeAffinityPolicy"] = chance.of(&["Ignore", "Honor"]).into();
        if chance.one_in(2) {
            own.spec["nodeSelector"][ZONE] = "a".into();
        }
    }),
    ("spread with nodeTaintsPolicy", |chance, own| {
        let key = a_place(chance);
        spread(chance, own, key);
        last_spread(own)["nodeTaintsPolicy"] = chance.of(&["Honor", "Ignore"]).into();
    }),
    ("spread with matchLabelKeys", |chance, own| {
        let key = a_place(chance);
        spread(chance, own, key);
        last_spread(own)["matchLabelKeys"] = json!(["rev"]);
    }),
    ("places of volumes", |chance, own| {
        let zones = chance.of(&[&["a"][..], &["b"], &["a", "c"]]);
        own.volumes.push(Volume::There { zones });
    }),
    ("labels of volumes", |chance, own| {
        own.volumes.push(Volume::Labelled { zone: chance.of(&["a", "b", "b__c"]) });
    }),
    ("places of a storage class", |chance, own| {
        own.volumes.push(Volume::Waits { class: chance.of(&["late-a-b", "late-c"]) });
    }),
    ("volumes that wait for a consumer", |_, own| {
        own.volumes.push(Volume::Waits { class: "late" });
    }),
    ("volumes of a CSI driver", |_, own| {
        own.volumes.push(Volume::There { zones: &[] });
        own.volumes.push(Volume::There { zones: &[] });
    }),
    ("volumes for one pod at a time", |_, own| own.volumes.push(Volume::Once)),
    ("ephemeral volumes", |chance, own| {
        own.volumes.push(Volume::Ephemeral { class: chance.of(&["late", "late-a-b"]) });
    }),
    ("lost or missing claims", |chance, own| {
        let kinds = [Volume::Lost, Volume::Missing, Volume::AtOnce, Volume::ByHand];
        own.volumes.push(chance.of(&kinds));
    }),
    ("requests of nothing", |_, own| {
        own.spec["containers"][0]["resources"] = json!({});
    }),
    ("limits of the pod", |_, own| {
        own.spec["resources"]["limits"] = json!({"cpu": "7", "memory": "8Gi"});
    }),
    ("alternatives of node affinity", |chance, own| {
        for _ in 0..2 {
            let (key, value) = a_label(chance);
            let one = json!({"key": key, "operator": "In", "values": [value]});
            let (key, value) = a_label(chance);
            let two = json!({"key": key, "operator": "NotIn", "values": [value]});
            let terms = &mut own.spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"];
            push(terms, json!({"matchExpressions": [one, two]}));
        }
    }),
    ("priority", |chance, own| {
        own.spec["priorityClassName"] = chance.of(&["high", "low"]).into();
    }),
];

/// Returns a few pods with one to four features.
pub(super) fn deployment(chance: &mut Chance, at: usize, seed: u64) -> Deployment {
    let app = chance.of(&["a", "b", "c"]);
    let mut own = Draft {
        labels: json!({"app": app, "rev": chance.of(&["1", "2"])}),
        spec: json!({"containers": [{
            "name": "main", "image": "main", "ports": [], "resources": {"requests": {
                "cpu": chance.of(&["200m", "700m", "1500m"]),
                "memory": chance.of(&["100Mi", "1Gi", "3Gi"]),
            }},
        }]}),
        volumes: Vec::new(),
        seed,
    };
    let mut tags = Tags::new();
    for _ in 0..1 + chance.up_to(3) {
        let (name, feature) = chance.of(FEATURES);
        if tags.insert(name) {
            feature(chance, &mut own);
        }
    }
    if tags.contains("limits without requests") && tags.len() > 1 {
        // Requests of other features do not fit into a pod that has only limits.
        let resources = &mut own.spec["containers"][0]["resources"];
        if resources["requests"].is_object() {
            tags.remove("limits without requests");
        }
    }
    let requests = &mut own.spec["containers"][0]["resources"]["requests"];
    if requests["hugepages-2Mi"].is_string() && requests["cpu"].is_null() {
        // The API requires CPU or memory in addition to huge pages.
        requests["cpu"] = "200m".into();
    }
    let (namespace, _) = chance.of(&NAMESPACES);
    let mut deployment = Deployment { tags, pods: Vec::new() };
    let most = chance.of(&[2, 3, 6]);
    for replica in 0..1 + chance.up_to(most) {
        let mut pod = Owned {
            pod: json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"namespace": namespace, "name": format!("w{seed}-p{at}-{replica}"),
                    "labels": own.labels},
                "spec": own.spec,
            }),
            ..Owned::default()
        };
        for (number, volume) in own.volumes.iter().enumerate() {
            volumes::mount(&mut pod, *volume, (number, &format!("w{seed}-p{at}")));
        }
        deployment.pods.push(pod);
    }
    deployment
}

fn init(own: &mut Draft, cpu: &str, restart: Option<&str>) {
    let list = &mut own.spec["initContainers"];
    let at = list.as_array().map_or(0, Vec::len);
    let mut container = json!({"name": format!("init-{at}"), "image": "init",
        "resources": {"requests": {"cpu": cpu, "memory": "2Gi"}}});
    if let Some(restart) = restart {
        container["restartPolicy"] = restart.into();
    }
    push(list, container);
}

fn push(list: &mut Value, item: Value) {
    match list.as_array_mut() {
        Some(list) => list.push(item),
        None => *list = json!([item]),
    }
}

/// Adds a resource that must be equal in requests and limits.
fn device(own: &mut Draft, name: &str, amount: &str) {
    let resources = &mut own.spec["containers"][0]["resources"];
    for part in ["requests", "limits"] {
        resources[part][name] = amount.into();
    }
}

fn port(chance: &mut Chance, own: &mut Draft, address: &str, protocol: &str) {
    let number = chance.of(&[8080, 8081]);
    let ports = &mut own.spec["containers"][0]["ports"];
    let at = ports.as_array().map_or(0, Vec::len);
    let mut port = json!({"name": format!("port-{at}"), "containerPort": 80 + at,
        "hostPort": number, "protocol": protocol});
    if !address.is_empty() {
        port["hostIP"] = address.into();
    }
    push(ports, port);
}

fn a_label(chance: &mut Chance) -> (&'static str, &'static str) {
    chance.of(&[
        (ZONE, "a"),
        (ZONE, "b"),
        (CAPACITY_TYPE, "spot"),
        (CAPACITY_TYPE, "on-demand"),
        (ARCH, "arm64"),
        (ARCH, "amd64"),
        (RACK, "r1"),
        (RACK, "r2"),
        ("team", "x"),
        (INSTANCE_TYPE, "c-8"),
        ("karpenter.sh/nodepool", "q"),
    ])
}

fn a_place(chance: &mut Chance) -> &'static str {
    chance.of(&[HOSTNAME, ZONE, CAPACITY_TYPE, RACK])
}

/// Adds an expression to the last term, or sometimes as a new term.
fn require(chance: &mut Chance, own: &mut Draft, expression: &Value) {
    let terms = &mut own.spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"];
    let alone = json!({"matchExpressions": [expression]});
    let last = terms.as_array_mut().and_then(|terms| terms.last_mut());
    match last {
        Some(last) if !chance.one_in(3) => push(&mut last["matchExpressions"], expression.clone()),
        _ => push(terms, alone),
    }
}

fn tolerate(chance: &mut Chance, own: &mut Draft, mut toleration: Value) {
    let effect = chance.of(&["", "NoSchedule", "NoExecute"]);
    if !effect.is_empty() {
        toleration["effect"] = effect.into();
    }
    push(&mut own.spec["tolerations"], toleration);
}

/// Returns a term about pods of an app on a host, in a zone or in a rack.
pub(super) fn term(chance: &mut Chance) -> Value {
    let key = chance.of(&[HOSTNAME, HOSTNAME, ZONE, RACK]);
    json!({"topologyKey": key, "labelSelector": a_selector(chance)})
}

fn a_selector(chance: &mut Chance) -> Value {
    let app = chance.of(&["a", "b", "c"]);
    let other = chance.of(&["a", "b", "c"]);
    match chance.up_to(5) {
        0 => {
            json!({"matchExpressions": [{"key": "app", "operator": "In", "values": [app, other]}]})
        }
        1 => json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [app]}]}),
        2 => json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}),
        _ => json!({"matchLabels": {"app": app}}),
    }
}

/// Adds a term with one more field, as affinity or anti-affinity.
fn near_or_far(chance: &mut Chance, own: &mut Draft, field: &str, value: &Value) {
    let mut term = term(chance);
    term[field] = value.clone();
    let kind = chance.of(&["podAffinity", "podAntiAffinity"]);
    push(&mut own.spec["affinity"][kind][REQUIRED], term);
}

fn spread(chance: &mut Chance, own: &mut Draft, key: &str) {
    let mut selector = a_selector(chance);
    if !chance.one_in(3) {
        selector = json!({"matchLabels": {"app": own.labels["app"]}});
    }
    let constraint = json!({"topologyKey": key, "maxSkew": 1, "labelSelector": selector,
        "whenUnsatisfiable": "DoNotSchedule"});
    let list = &mut own.spec["topologySpreadConstraints"];
    // A pod may have only one constraint per key and kind.
    if let Some(list) = list.as_array_mut() {
        list.retain(|other| other["topologyKey"] != key);
    }
    push(list, constraint);
}

fn last_spread(own: &mut Draft) -> &mut Value {
    let list = own.spec["topologySpreadConstraints"].as_array_mut();
    list.and_then(|list| list.last_mut()).expect("just added")
}
