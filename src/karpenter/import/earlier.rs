//! Makes objects of `v1` of those of earlier versions, as Karpenter's own conversion does, with
//! what their API filled in.
//! It must not know what becomes of objects of `v1`.

use serde_json::{Map, Value, json};

use super::super::carry::{put, take, text};
use super::super::loss::Losses;
use super::super::require::keys;
use super::super::tables::FAMILIES;
use super::{Object, Objects};
use crate::model::labels::{ARCH, CAPACITY_TYPE, INSTANCE_TYPE, OS};

/// Terms of one list at most. Source: spec/aws.md §1.1.
const TERMS_MAX: usize = 30;

/// A NodePool of `v1beta1`.
pub(super) fn pool(mut own: Object, all: &mut Objects) {
    if let Some(age) = take(&mut own.spec, "disruption.expireAfter") {
        put(&mut own.spec, "template.spec.expireAfter", age);
    }
    let policy = "disruption.consolidationPolicy";
    if let Some(text) = take(&mut own.spec, policy) {
        let renamed = match text.as_str() {
            Some("WhenUnderutilized") => Value::from("WhenEmptyOrUnderutilized"),
            _ => text,
        };
        put(&mut own.spec, policy, renamed);
    }
    if let Some(settings) = take(&mut own.spec, "template.spec.kubelet") {
        all.kubelets.insert(own.name.clone(), settings);
    }
    all.pools.push(own);
}

/// An EC2NodeClass of `v1beta1`.
pub(super) fn node_class(mut own: Object) -> Object {
    hops(&mut own.spec, true);
    let mut losses = Losses::of(own.of.clone());
    images(&mut own.spec, &mut losses);
    own.lost.extend(losses.all);
    own
}

/// An AWSNodeTemplate of `v1alpha1`.
pub(super) fn template(mut own: Object) -> Object {
    let mut losses = Losses::of(own.of.clone());
    aws(&mut own.spec, "spec", &mut losses);
    own.lost.extend(losses.all);
    own
}

/// A Provisioner of `v1alpha5`, with the node class that it may describe itself.
pub(super) fn provisioner(mut own: Object, all: &mut Objects) {
    let mut old = std::mem::take(&mut own.spec);
    let mut losses = Losses::of(own.of.clone());
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
    leaving(&mut old, &mut new);
    let (rules, added) = rules(take(&mut old, "requirements"));
    if !added.is_empty() {
        let added = added.join(", ");
        own.about
            .push(format!("v1alpha5 adds what is required of {added}."));
    }
    put(&mut new, "template.spec.requirements", rules);
    if let Some(mut settings) = take(&mut old, "kubeletConfiguration") {
        let own_settings = settings.as_object_mut();
        if own_settings.is_some_and(|all| take(all, "containerRuntime").is_some()) {
            let why = "containerd is all there is";
            losses.add("spec.kubeletConfiguration.containerRuntime", why);
        }
        all.kubelets.insert(own.name.clone(), settings);
    }
    let named = take(&mut old, "providerRef.name").as_ref().and_then(text);
    let provider = take(&mut old, "provider");
    if let Some(Value::Object(provider)) = provider {
        let class = inline(&own, provider);
        all.classes.push(class);
    }
    let name = named.unwrap_or_else(|| own.name.clone());
    let reference = json!({ "kind": "EC2NodeClass", "name": name });
    put(&mut new, "template.spec.nodeClassRef", reference);
    for (field, inner) in [
        ("providerRef", &["apiVersion", "kind"][..]),
        ("limits", &[]),
    ] {
        if let Some(Value::Object(mut rest)) = take(&mut old, field) {
            inner.iter().for_each(|name| drop(take(&mut rest, name)));
            for name in rest.keys() {
                losses.add(format!("spec.{field}.{name}"), "an unknown field");
            }
        }
    }
    for (name, value) in &old {
        if !value.is_null() {
            losses.add(format!("spec.{name}"), "an unknown field");
        }
    }
    own.spec = new;
    own.lost.extend(losses.all);
    all.pools.push(own);
}

/// When the nodes of a Provisioner leave. What it does not say, they do not do.
fn leaving(old: &mut Map<String, Value>, new: &mut Map<String, Value>) {
    let mut seconds = |name: &str| take(old, name).and_then(|own| own.as_i64());
    let (empty, age) = (
        seconds("ttlSecondsAfterEmpty"),
        seconds("ttlSecondsUntilExpired"),
    );
    let consolidation = take(old, "consolidation.enabled") == Some(Value::Bool(true));
    if old
        .get("consolidation")
        .is_some_and(|own| *own == json!({}))
    {
        old.shift_remove("consolidation");
    }
    let after = |seconds: Option<i64>| seconds.map_or("Never".to_owned(), |own| format!("{own}s"));
    put(new, "template.spec.expireAfter", Value::from(after(age)));
    let disruption = match consolidation {
        true => json!({ "consolidationPolicy": "WhenEmptyOrUnderutilized" }),
        false => json!({ "consolidationPolicy": "WhenEmpty", "consolidateAfter": after(empty) }),
    };
    put(new, "disruption", disruption);
}

/// The requirements of a Provisioner with those that its API adds, and whose labels these are.
fn rules(own: Option<Value>) -> (Value, Vec<&'static str>) {
    const FAMILY: &str = "karpenter.k8s.aws/instance-family";
    const CATEGORY: &str = "karpenter.k8s.aws/instance-category";
    const GENERATION: &str = "karpenter.k8s.aws/instance-generation";
    let known = keys(own.as_ref());
    let mut all = match own {
        Some(Value::Array(all)) => all,
        _ => Vec::new(),
    };
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
    let mut losses = Losses::of(provisioner.of.clone());
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

/// Makes the spec of an EC2NodeClass of what described one before there was any.
fn aws(spec: &mut Map<String, Value>, path: &str, losses: &mut Losses) {
    for name in ["apiVersion", "kind"] {
        spec.shift_remove(name);
    }
    if take(spec, "launchTemplate").is_some() {
        let why = "launch templates are ours alone: say in the node class what yours says";
        losses.add(format!("{path}.launchTemplate"), why);
    }
    for (from, to) in [
        ("subnetSelector", "subnetSelectorTerms"),
        ("securityGroupSelector", "securityGroupSelectorTerms"),
        ("amiSelector", "amiSelectorTerms"),
    ] {
        if let Some(selector) = take(spec, from) {
            let at = format!("{path}.{from}");
            let terms = terms(&selector, &at, losses);
            spec.insert(to.to_owned(), Value::Array(terms));
        }
    }
    if spec.get("amiFamily").is_none_or(Value::is_null) {
        spec.insert("amiFamily".to_owned(), Value::from("AL2"));
    }
    images(spec, losses);
    hops(spec, false);
}

/// Images where none are named: the newest of the family.
fn images(spec: &mut Map<String, Value>, losses: &mut Losses) {
    let family = spec.get("amiFamily").and_then(text).unwrap_or_default();
    if family == "Ubuntu" {
        // They start as those of AL2 do, but no alias finds them.
        spec.insert("amiFamily".to_owned(), Value::from("AL2"));
        let why = "taken for AL2, which starts alike; ami blocks have to name the images";
        losses.add("spec.amiFamily: Ubuntu", why);
        return;
    }
    let none = match spec.get("amiSelectorTerms") {
        Some(Value::Array(terms)) => terms.is_empty(),
        other => other.is_none_or(Value::is_null),
    };
    let known = FAMILIES.iter().find(|(theirs, _)| *theirs == family);
    if let Some((_, ours)) = known.filter(|(theirs, _)| none && *theirs != "Custom") {
        let terms = json!([{ "alias": format!("{ours}@latest") }]);
        spec.insert("amiSelectorTerms".to_owned(), terms);
    }
}

/// What the metadata service allowed where nothing was said.
fn hops(spec: &mut Map<String, Value>, each: bool) {
    let given = spec.get("metadataOptions").is_some_and(Value::is_object);
    let options = spec.entry("metadataOptions").or_insert_with(|| json!({}));
    if options.is_null() {
        *options = json!({});
    }
    let Some(options) = options.as_object_mut() else {
        return;
    };
    // Either the API filled in each option, or EC2 did, which wants no tokens.
    if each || !given {
        options.entry("httpPutResponseHopLimit").or_insert(json!(2));
    } else {
        options.entry("httpTokens").or_insert(json!("optional"));
    }
}

/// The terms of a selector: values with commas are alternatives, ids are ids.
fn terms(selector: &Value, path: &str, losses: &mut Losses) -> Vec<Value> {
    let Some(selector) = selector.as_object() else {
        losses.add(path, "it is no map");
        return Vec::new();
    };
    let mut all = vec![Map::new()];
    for (key, value) in selector {
        let field = match key.as_str() {
            "aws-ids" | "aws::ids" => "id",
            "aws::name" => "name",
            "aws::owners" => "owner",
            _ => "",
        };
        let values = text(value).unwrap_or_default();
        let mut next = Vec::new();
        for value in values.split(',').map(str::trim) {
            for term in &all {
                let mut term: Map<String, Value> = term.clone();
                // What is empty is any value.
                let value = Value::from(if value.is_empty() { "*" } else { value });
                match field {
                    "" => {
                        let tags = term.entry("tags").or_insert_with(|| json!({}));
                        tags[key] = value;
                    }
                    _ => drop(term.insert(field.to_owned(), value)),
                }
                next.push(term);
                if next.len() > TERMS_MAX {
                    losses.add(path, format!("it is more than {TERMS_MAX} terms"));
                    return Vec::new();
                }
            }
        }
        all = next;
    }
    for term in &mut all {
        if term.contains_key("id") && term.len() > 1 {
            term.retain(|name, _| name == "id");
            losses.add(format!("{path}: all but ids"), "an id says it all");
        }
    }
    all.into_iter().map(Value::Object).collect()
}
