//! Makes NodePools of `v1` of Provisioners, as Karpenter's own conversion does, with what their API
//! filled in.
//! It must not know what becomes of objects of `v1`.

use serde_json::{Map, Value, json};

use super::super::field_tables::POLICIES;
use super::super::requirements::keys;
use super::v1_conversion::{OWN_BLOCK, TEMPLATES, aws, cluster_tag, refuse_version, rename_policy};
use super::{Object, Objects};
use crate::migrate::dropped::{DroppedFields, joined};
use crate::migrate::field_mapping::{put, take, text};
use crate::model::duration::parse_go;
use crate::model::labels::{ARCH, CAPACITY_TYPE, INSTANCE_TYPE, OS, ZONE};

/// Fields that say of one label what it may be. Source: Karpenter 0.3.3 and 0.4.0, `Constraints`.
const LISTS: [(&str, &str); 7] = [
    ("instanceTypes", INSTANCE_TYPE),
    ("zones", ZONE),
    ("architectures", ARCH),
    ("architecture", ARCH),
    ("operatingSystems", OS),
    ("operatingSystem", OS),
    ("provider.capacityTypes", CAPACITY_TYPE),
];

/// Objects of which each field is told that nobody knows.
const OPENED: [&str; 4] = ["consolidation", "deprovisioning", "limits", "providerRef"];

/// A Provisioner, with the node class that it may describe itself.
pub(super) fn convert(mut own: Object, version: &str, all: &mut Objects) {
    let mut old = std::mem::take(&mut own.spec);
    let mut losses = DroppedFields::of(own.of.clone());
    if version == "v1alpha3" {
        labelled(&mut old, &mut losses);
    }
    let mut new = Map::new();
    for (from, to) in [
        ("labels", "template.metadata.labels"),
        ("annotations", "template.metadata.annotations"),
        ("taints", "template.spec.taints"),
        ("startupTaints", "template.spec.startupTaints"),
        ("limits.resources", "limits"),
        ("weight", "weight"),
    ] {
        if let Some(value) = take(&mut old, from) {
            put(&mut new, to, value);
        }
    }
    leaving(&mut old, &mut new, &mut losses);
    let listed = listed(&mut old, &mut losses);
    let (rules, added) = rules(take(&mut old, "requirements"), listed);
    if !added.is_empty() {
        let added = added.join(", ");
        own.about
            .push(format!("v1alpha5 adds what is required of {added}."));
    }
    put(&mut new, "template.spec.requirements", rules);
    refuse_version(&mut old, "spec", &mut losses);
    if let Some(mut settings) = take(&mut old, "kubeletConfiguration") {
        let own_settings = settings.as_object_mut();
        if own_settings.is_some_and(|all| take(all, "containerRuntime").is_some()) {
            let why = "containerd is all there is";
            losses.add("spec.kubeletConfiguration.containerRuntime", why);
        }
        all.kubelets.insert(own.name.clone(), settings);
    }
    let named = take(&mut old, "providerRef.name").and_then(|own| {
        let name = text(&own);
        if name.is_none() {
            losses.add("spec.providerRef.name", "it is no text");
        }
        name
    });
    if old.get("provider").is_some_and(Value::is_object)
        && let Some(Value::Object(provider)) = take(&mut old, "provider")
    {
        let class = inline(&own, provider);
        all.classes.push(class);
    }
    let name = named.unwrap_or_else(|| own.name.clone());
    let reference = json!({ "kind": "EC2NodeClass", "name": name });
    put(&mut new, "template.spec.nodeClassRef", reference);
    for field in ["providerRef.apiVersion", "providerRef.kind"] {
        take(&mut old, field);
    }
    leftovers(&old, "spec", &mut losses);
    own.spec = new;
    own.lost.extend(losses.all);
    all.pools.push(own);
}

/// Tells what nothing was made of.
fn leftovers(rest: &Map<String, Value>, path: &str, losses: &mut DroppedFields) {
    for (name, value) in rest {
        let path = joined(path, name);
        match value {
            Value::Null => {}
            Value::Object(inner) if OPENED.contains(&&**name) => leftovers(inner, &path, losses),
            _ => losses.add(path, "an unknown field"),
        }
    }
}

/// When the nodes of a Provisioner leave. What it does not say, they do not do.
fn leaving(old: &mut Map<String, Value>, new: &mut Map<String, Value>, losses: &mut DroppedFields) {
    const EMPTY: &str = "WhenEmpty";
    const UNDERUTILIZED: &str = "WhenEmptyOrUnderutilized";
    rename_policy(old, "deprovisioning.consolidationPolicy");
    let age = seconds(old, "ttlSecondsUntilExpired", losses).map(|(_, own)| own);
    let words = ("expireAfter", "ttlSecondsUntilExpired");
    let age = later(old, words, age, losses);
    let age = age.unwrap_or_else(|| "Never".to_owned());
    put(new, "template.spec.expireAfter", Value::from(age));

    let enabled = said(old, "consolidation.enabled", losses).and_then(|(path, own)| {
        if !own.is_boolean() {
            losses.add(path, "it is no bool");
        }
        own.as_bool()
    });
    let policy = enabled.map(|on| if on { UNDERUTILIZED } else { EMPTY });
    let words = ("consolidationPolicy", "consolidation.enabled");
    let policy = later(old, words, policy.map(str::to_owned), losses);
    let policy = policy.filter(|own| {
        let known = POLICIES.iter().any(|(theirs, _)| theirs == own);
        if !known {
            let why = format!("there is nothing like {own:?} here");
            losses.add("spec.deprovisioning.consolidationPolicy", why);
        }
        known
    });
    let policy = policy.unwrap_or_else(|| EMPTY.to_owned());

    let empty = seconds(old, "ttlSecondsAfterEmpty", losses).filter(|(path, _)| {
        if policy != EMPTY {
            let why = "it is about empty nodes alone, and more is consolidated";
            losses.add(path.as_str(), why);
        }
        policy == EMPTY
    });
    let words = ("consolidateAfter", "ttlSecondsAfterEmpty");
    let after = later(old, words, empty.map(|(_, own)| own), losses);
    let after = after.or_else(|| (policy == EMPTY).then(|| "Never".to_owned()));
    put(new, "disruption.consolidationPolicy", Value::from(policy));
    if let Some(after) = after {
        put(new, "disruption.consolidateAfter", Value::from(after));
    }
}

/// Takes a field that stands by itself, or in the block that an early proposal had for it and its
/// like; with its path.
fn said(
    old: &mut Map<String, Value>,
    field: &str,
    losses: &mut DroppedFields,
) -> Option<(String, Value)> {
    let within = format!("deprovisioning.{field}");
    let (own, other) = (take(old, field), take(old, &within));
    match (own, other) {
        (Some(own), other) => {
            if other.is_some_and(|other| other != own) {
                let why = format!("spec.{field} says otherwise");
                losses.add(format!("spec.{within}"), why);
            }
            Some((format!("spec.{field}"), own))
        }
        (None, other) => Some((format!("spec.{within}"), other?)),
    }
}

/// A duration in whole seconds, with the path of its field.
fn seconds(
    old: &mut Map<String, Value>,
    field: &str,
    losses: &mut DroppedFields,
) -> Option<(String, String)> {
    let (path, value) = said(old, field, losses)?;
    let whole = value.as_i64().map(|own| format!("{own}s"));
    if whole.is_none() {
        losses.add(path.as_str(), "it is no integer");
    }
    Some((path, whole?))
}

/// What the block says in a word of later versions, where the `older` one has `said` nothing.
fn later(
    old: &mut Map<String, Value>,
    (field, older): (&str, &str),
    said: Option<String>,
    losses: &mut DroppedFields,
) -> Option<String> {
    let path = format!("deprovisioning.{field}");
    let Some(value) = take(old, &path) else {
        return said;
    };
    let path = format!("spec.{path}");
    let Some(own) = text(&value) else {
        losses.add(path, "it is no text");
        return said;
    };
    let length = parse_go(&own);
    let same = |said: &str| said == own || (length.is_some() && length == parse_go(said));
    if said.as_deref().is_some_and(|said| !same(said)) {
        losses.add(path, format!("{older} says otherwise"));
    }
    said.or(Some(own))
}

/// Requirements of what stood in lists of their own.
fn listed(old: &mut Map<String, Value>, losses: &mut DroppedFields) -> Vec<Value> {
    let mut all = Vec::new();
    for (field, key) in LISTS {
        let values = match take(old, field) {
            None => continue,
            Some(Value::String(one)) if one.is_empty() => continue,
            Some(one @ Value::String(_)) => json!([one]),
            Some(values) => values,
        };
        let items = values.as_array();
        if items.is_some_and(Vec::is_empty) {
            continue;
        }
        // As a requirement it keeps the pool from being one of anything.
        if !items.is_some_and(|own| own.iter().all(|own| text(own).is_some())) {
            losses.add(format!("spec.{field}"), "it is no list of texts");
        }
        all.push(json!({ "key": key, "operator": "In", "values": values }));
    }
    all
}

/// The requirements of a Provisioner with those of its lists and those that its API adds, and whose
/// labels the latter are.
fn rules(own: Option<Value>, listed: Vec<Value>) -> (Value, Vec<&'static str>) {
    const FAMILY: &str = "karpenter.k8s.aws/instance-family";
    const CATEGORY: &str = "karpenter.k8s.aws/instance-category";
    const GENERATION: &str = "karpenter.k8s.aws/instance-generation";
    let mut all = match own {
        None => Vec::new(),
        Some(Value::Array(all)) => all,
        Some(other) => return (other, Vec::new()),
    };
    all.extend(listed);
    let known = keys(&all);
    let mut added = Vec::new();
    let mut add = |key: &'static str, operator: &str, values: &[&str]| {
        all.push(json!({ "key": key, "operator": operator, "values": values }));
        added.push(key);
    };
    for (key, value) in [(OS, "linux"), (ARCH, "amd64"), (CAPACITY_TYPE, "on-demand")] {
        if !known.contains(key) {
            add(key, "In", &[value]);
        }
    }
    let shaped = [INSTANCE_TYPE, FAMILY, CATEGORY, GENERATION];
    if !shaped.iter().any(|key| known.contains(*key)) {
        add(CATEGORY, "In", &["c", "m", "r"]);
        add(GENERATION, "Gt", &["2"]);
    }
    (Value::Array(all), added)
}

/// The node class that a Provisioner describes itself.
fn inline(provisioner: &Object, mut provider: Map<String, Value>) -> Object {
    let mut losses = DroppedFields::of(provisioner.of.clone());
    aws(&mut provider, "spec.provider", &mut losses);
    Object {
        of: provisioner.of.clone(),
        name: provisioner.name.clone(),
        namespace: String::new(),
        spec: provider,
        about: Vec::new(),
        lost: losses.all,
    }
}

/// Makes a `provider` of what described the nodes before there was any: labels, and the cluster's
/// name. Source: Karpenter 0.3.3.
fn labelled(old: &mut Map<String, Value>, losses: &mut DroppedFields) {
    let mut provider = Map::new();
    let mut cluster = None;
    if let Some(own) = take(old, "cluster") {
        losses.add("spec.cluster", OWN_BLOCK);
        cluster = own.get("name").and_then(text);
    }
    if let Some(name) = &cluster {
        let profile = format!("KarpenterNodeInstanceProfile-{name}");
        provider.insert("instanceProfile".to_owned(), Value::from(profile));
    }
    let mut labels = old.get_mut("labels").and_then(Value::as_object_mut);
    let mut label = |name: &str| {
        let key = format!("node.k8s.aws/{name}");
        labels.as_mut()?.shift_remove(&key)
    };
    if let Some(value) = label("capacity-type") {
        provider.insert("capacityTypes".to_owned(), value);
    }
    if label("launch-template-name").is_some() {
        losses.add("spec.labels.node.k8s.aws/launch-template-name", TEMPLATES);
    }
    for (kind, selector) in [
        ("subnet", "subnetSelector"),
        ("security-group", "securityGroupSelector"),
    ] {
        let mut tags = cluster.as_deref().map(cluster_tag).unwrap_or_default();
        if let Some(name) = label(&format!("{kind}-name")) {
            tags.insert("Name".to_owned(), name);
        }
        let tag = label(&format!("{kind}-tag-key"));
        match tag.as_ref().map(text) {
            Some(Some(tag)) => drop(tags.insert(tag, Value::from("*"))),
            Some(None) => losses.add(
                format!("spec.labels.node.k8s.aws/{kind}-tag-key"),
                "it is no text",
            ),
            None => {}
        }
        if !tags.is_empty() {
            provider.insert(selector.to_owned(), Value::Object(tags));
        }
    }
    if old.get("labels") == Some(&json!({})) {
        old.shift_remove("labels");
    }
    if !provider.is_empty() {
        old.insert("provider".to_owned(), Value::Object(provider));
    }
}
