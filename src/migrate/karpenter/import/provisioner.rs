//! Converts Provisioners to NodePools of `v1`, like Karpenter's own conversion, with the defaults
//! of their API.

use serde_json::{Map, Value, json};

use super::super::field_tables::POLICIES;
use super::super::requirements::requirement_keys;
use super::v1_conversion::{
    OWN_BLOCK, TEMPLATES, cluster_tag, convert_aws_fields, drop_kubernetes_version, rename_policy,
};
use super::{Object, Objects};
use crate::migrate::dropped::{DroppedFields, join_path};
use crate::migrate::field_mapping::{put_field, scalar_text, take_field};
use crate::model::duration::parse_go;
use crate::model::labels::{ARCH, CAPACITY_TYPE, INSTANCE_TYPE, OS, ZONE};

/// Fields that restrict one label. Source: Karpenter 0.3.3 and 0.4.0, `Constraints`.
const LISTS: [(&str, &str); 7] = [
    ("instanceTypes", INSTANCE_TYPE),
    ("zones", ZONE),
    ("architectures", ARCH),
    ("architecture", ARCH),
    ("operatingSystems", OS),
    ("operatingSystem", OS),
    ("provider.capacityTypes", CAPACITY_TYPE),
];

/// Objects whose unknown fields are reported one by one.
const OPENED: [&str; 4] = ["consolidation", "deprovisioning", "limits", "providerRef"];

/// Converts a Provisioner, with its inline node class if it has one.
pub(super) fn convert_provisioner(mut object: Object, version: &str, objects: &mut Objects) {
    let mut spec = std::mem::take(&mut object.spec);
    let mut losses = DroppedFields::for_object(object.of.clone());
    if version == "v1alpha3" {
        provider_from_labels(&mut spec, &mut losses);
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
        if let Some(value) = take_field(&mut spec, from) {
            put_field(&mut new, to, value);
        }
    }
    convert_disruption(&mut spec, &mut new, &mut losses);
    let listed = list_requirements(&mut spec, &mut losses);
    let (rules, added) = all_requirements(take_field(&mut spec, "requirements"), listed);
    if !added.is_empty() {
        let added = added.join(", ");
        object.about.push(format!("v1alpha5 adds default requirements for {added}."));
    }
    put_field(&mut new, "template.spec.requirements", rules);
    drop_kubernetes_version(&mut spec, "spec", &mut losses);
    if let Some(mut settings) = take_field(&mut spec, "kubeletConfiguration") {
        let own_settings = settings.as_object_mut();
        if own_settings.is_some_and(|all| take_field(all, "containerRuntime").is_some()) {
            let why = "containerd is the only runtime";
            losses.add("spec.kubeletConfiguration.containerRuntime", why);
        }
        objects.kubelets.insert(object.name.clone(), settings);
    }
    let named = take_field(&mut spec, "providerRef.name").and_then(|value| {
        let name = scalar_text(&value);
        if name.is_none() {
            losses.add("spec.providerRef.name", "the value is not a string");
        }
        name
    });
    if spec.get("provider").is_some_and(Value::is_object)
        && let Some(Value::Object(provider)) = take_field(&mut spec, "provider")
    {
        let class = inline_node_class(&object, provider);
        objects.classes.push(class);
    }
    let name = named.unwrap_or_else(|| object.name.clone());
    let reference = json!({ "kind": "EC2NodeClass", "name": name });
    put_field(&mut new, "template.spec.nodeClassRef", reference);
    for field in ["providerRef.apiVersion", "providerRef.kind"] {
        take_field(&mut spec, field);
    }
    report_unconverted(&spec, "spec", &mut losses);
    object.spec = new;
    object.lost.extend(losses.all);
    objects.pools.push(object);
}

/// Reports the fields that were not converted.
fn report_unconverted(rest: &Map<String, Value>, path: &str, losses: &mut DroppedFields) {
    for (name, value) in rest {
        let path = join_path(path, name);
        match value {
            Value::Null => {}
            Value::Object(inner) if OPENED.contains(&&**name) => {
                report_unconverted(inner, &path, losses)
            }
            _ => losses.add(path, "unknown field"),
        }
    }
}

/// Converts the disruption settings of a Provisioner. Settings that are not set are disabled.
fn convert_disruption(
    spec: &mut Map<String, Value>,
    new: &mut Map<String, Value>,
    losses: &mut DroppedFields,
) {
    const EMPTY: &str = "WhenEmpty";
    const UNDERUTILIZED: &str = "WhenEmptyOrUnderutilized";
    rename_policy(spec, "deprovisioning.consolidationPolicy");
    let age = take_seconds(spec, "ttlSecondsUntilExpired", losses).map(|(_, length)| length);
    let age = newer_or_older(spec, "expireAfter", "ttlSecondsUntilExpired", age, losses);
    let age = age.unwrap_or_else(|| "Never".to_owned());
    put_field(new, "template.spec.expireAfter", Value::from(age));

    let enabled = take_either(spec, "consolidation.enabled", losses).and_then(|(path, value)| {
        if !value.is_boolean() {
            losses.add(path, "the value is not a bool");
        }
        value.as_bool()
    });
    let policy = enabled.map(|on| if on { UNDERUTILIZED } else { EMPTY });
    let policy = newer_or_older(
        spec,
        "consolidationPolicy",
        "consolidation.enabled",
        policy.map(str::to_owned),
        losses,
    );
    let policy = policy.filter(|policy| {
        let known = POLICIES.iter().any(|(theirs, _)| theirs == policy);
        if !known {
            let why = format!("Outrigger has no equivalent of {policy:?}");
            losses.add("spec.deprovisioning.consolidationPolicy", why);
        }
        known
    });
    let policy = policy.unwrap_or_else(|| EMPTY.to_owned());

    let empty = take_seconds(spec, "ttlSecondsAfterEmpty", losses).filter(|(path, _)| {
        if policy != EMPTY {
            let why = "it applies only to empty nodes, but consolidation covers all nodes";
            losses.add(path.as_str(), why);
        }
        policy == EMPTY
    });
    let after = newer_or_older(
        spec,
        "consolidateAfter",
        "ttlSecondsAfterEmpty",
        empty.map(|(_, length)| length),
        losses,
    );
    let after = after.or_else(|| (policy == EMPTY).then(|| "Never".to_owned()));
    put_field(new, "disruption.consolidationPolicy", Value::from(policy));
    if let Some(after) = after {
        put_field(new, "disruption.consolidateAfter", Value::from(after));
    }
}

/// Removes a field from the spec, or from the `deprovisioning` block of an early proposal. Returns
/// the field with its path.
fn take_either(
    spec: &mut Map<String, Value>,
    field: &str,
    losses: &mut DroppedFields,
) -> Option<(String, Value)> {
    let within = format!("deprovisioning.{field}");
    let (value, nested) = (take_field(spec, field), take_field(spec, &within));
    match (value, nested) {
        (Some(value), nested) => {
            if nested.is_some_and(|nested| nested != value) {
                let why = format!("spec.{field} has a different value");
                losses.add(format!("spec.{within}"), why);
            }
            Some((format!("spec.{field}"), value))
        }
        (None, nested) => Some((format!("spec.{within}"), nested?)),
    }
}

/// Returns a duration in whole seconds, with the path of its field.
fn take_seconds(
    spec: &mut Map<String, Value>,
    field: &str,
    losses: &mut DroppedFields,
) -> Option<(String, String)> {
    let (path, value) = take_either(spec, field, losses)?;
    let seconds = value.as_i64().map(|number| format!("{number}s"));
    if seconds.is_none() {
        losses.add(path.as_str(), "the value is not an integer");
    }
    Some((path, seconds?))
}

/// Returns a field of the block with a newer name, unless the `older` field is set.
fn newer_or_older(
    spec: &mut Map<String, Value>,
    field: &str,
    older: &str,
    older_value: Option<String>,
    losses: &mut DroppedFields,
) -> Option<String> {
    let path = format!("deprovisioning.{field}");
    let Some(value) = take_field(spec, &path) else {
        return older_value;
    };
    let path = format!("spec.{path}");
    let Some(text) = scalar_text(&value) else {
        losses.add(path, "the value is not a string");
        return older_value;
    };
    let length = parse_go(&text);
    if older_value
        .as_deref()
        .is_some_and(|older| older != text && (length.is_none() || length != parse_go(older)))
    {
        losses.add(path, format!("{older} has a different value"));
    }
    older_value.or(Some(text))
}

/// Returns the requirements of separate lists.
fn list_requirements(spec: &mut Map<String, Value>, losses: &mut DroppedFields) -> Vec<Value> {
    let mut all = Vec::new();
    for (field, key) in LISTS {
        let values = match take_field(spec, field) {
            None => continue,
            Some(Value::String(one)) if one.is_empty() => continue,
            Some(one @ Value::String(_)) => json!([one]),
            Some(values) => values,
        };
        let items = values.as_array();
        if items.is_some_and(Vec::is_empty) {
            continue;
        }
        // The invalid requirement is kept, because without it the pool would allow any value.
        if !items.is_some_and(|item| item.iter().all(|value| scalar_text(value).is_some())) {
            losses.add(format!("spec.{field}"), "the value is not a list of strings");
        }
        all.push(json!({ "key": key, "operator": "In", "values": values }));
    }
    all
}

/// Returns the requirements of a Provisioner, including separate lists and API defaults, and the
/// labels of the defaults.
fn all_requirements(
    requirements: Option<Value>,
    from_lists: Vec<Value>,
) -> (Value, Vec<&'static str>) {
    const FAMILY: &str = "karpenter.k8s.aws/instance-family";
    const CATEGORY: &str = "karpenter.k8s.aws/instance-category";
    const GENERATION: &str = "karpenter.k8s.aws/instance-generation";
    let mut all = match requirements {
        None => Vec::new(),
        Some(Value::Array(all)) => all,
        Some(other) => return (other, Vec::new()),
    };
    all.extend(from_lists);
    let known = requirement_keys(&all);
    let mut defaults = vec![
        (OS, "In", &["linux"][..]),
        (ARCH, "In", &["amd64"]),
        (CAPACITY_TYPE, "In", &["on-demand"]),
    ];
    defaults.retain(|(key, ..)| !known.contains(*key));
    let shaped = [INSTANCE_TYPE, FAMILY, CATEGORY, GENERATION];
    if !shaped.iter().any(|key| known.contains(*key)) {
        defaults.extend([(CATEGORY, "In", &["c", "m", "r"][..]), (GENERATION, "Gt", &["2"])]);
    }
    let mut added = Vec::new();
    for (key, operator, values) in defaults {
        all.push(json!({ "key": key, "operator": operator, "values": values }));
        added.push(key);
    }
    (Value::Array(all), added)
}

/// Returns the inline node class of a Provisioner.
fn inline_node_class(spec: &Object, mut provider: Map<String, Value>) -> Object {
    let mut losses = DroppedFields::for_object(spec.of.clone());
    convert_aws_fields(&mut provider, "spec.provider", &mut losses);
    Object {
        of: spec.of.clone(),
        name: spec.name.clone(),
        spec: provider,
        lost: losses.all,
        ..Object::default()
    }
}

/// Removes and returns a label with the prefix of early versions.
fn take_label(spec: &mut Map<String, Value>, name: &str) -> Option<Value> {
    let labels = spec.get_mut("labels")?.as_object_mut()?;
    labels.shift_remove(&format!("node.k8s.aws/{name}"))
}

/// Creates a `provider` from the labels and the cluster name that described nodes before `provider`
/// existed. Source: Karpenter 0.3.3.
fn provider_from_labels(spec: &mut Map<String, Value>, losses: &mut DroppedFields) {
    let mut provider = Map::new();
    let mut cluster = None;
    if let Some(block) = take_field(spec, "cluster") {
        losses.add("spec.cluster", OWN_BLOCK);
        cluster = block.get("name").and_then(scalar_text);
    }
    if let Some(name) = &cluster {
        let profile = format!("KarpenterNodeInstanceProfile-{name}");
        provider.insert("instanceProfile".to_owned(), Value::from(profile));
    }
    if let Some(value) = take_label(spec, "capacity-type") {
        provider.insert("capacityTypes".to_owned(), value);
    }
    if take_label(spec, "launch-template-name").is_some() {
        losses.add("spec.labels.node.k8s.aws/launch-template-name", TEMPLATES);
    }
    for (kind, selector) in
        [("subnet", "subnetSelector"), ("security-group", "securityGroupSelector")]
    {
        let mut tags = cluster.as_deref().map(cluster_tag).unwrap_or_default();
        if let Some(name) = take_label(spec, &format!("{kind}-name")) {
            tags.insert("Name".to_owned(), name);
        }
        let tag = take_label(spec, &format!("{kind}-tag-key"));
        match tag.as_ref().map(scalar_text) {
            Some(Some(tag)) => drop(tags.insert(tag, Value::from("*"))),
            Some(None) => losses.add(
                format!("spec.labels.node.k8s.aws/{kind}-tag-key"),
                "the value is not a string",
            ),
            None => {}
        }
        if !tags.is_empty() {
            provider.insert(selector.to_owned(), Value::Object(tags));
        }
    }
    if spec.get("labels") == Some(&json!({})) {
        spec.shift_remove("labels");
    }
    if !provider.is_empty() {
        spec.insert("provider".to_owned(), Value::Object(provider));
    }
}
