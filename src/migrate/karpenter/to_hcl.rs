//! Converts a configuration to blocks, without arguments that have their default value.

use serde_json::Value;

use super::requirements;
use crate::migrate::format_units::{adjustment, duration, quantities, requests};
use crate::migrate::hcl::HclBody;
use crate::model::buffer::{Buffer, BufferPod, ScalableKind};
use crate::model::overlay::{Overlay, PriceAdjustment};
use crate::model::pool::{
    Budget, BudgetNodes, Consolidation, Disruption, Limits, OnBlocked, Pool, Safety,
};
use crate::model::taint::{Effect, Taint, Toleration, TolerationOperator};

// Node classes as HCL blocks.
pub(super) mod node_class;

/// A map of strings.
fn map<'a>(items: impl IntoIterator<Item = (&'a String, &'a String)>) -> Value {
    let items = items.into_iter();
    Value::Object(
        items
            .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
            .collect(),
    )
}

fn effect(own: Effect) -> &'static str {
    own.as_str()
}

/// Limits, including `nodes`.
pub(super) fn limits(own: &Limits) -> Option<Value> {
    let capacity = own
        .capacity
        .iter()
        .map(|(name, most)| (name.as_str(), *most));
    let nodes = own.nodes.map(|most| ("nodes", i64::from(most)));
    let all: Vec<(&str, i64)> = capacity.chain(nodes).collect();
    (!all.is_empty()).then(|| quantities(all))
}

/// A pool.
pub(super) fn pool(own: &Pool) -> HclBody {
    let usual = Pool::new(own.name.as_str());
    let mut body = HclBody::default();
    if let Some(class) = &own.node_class {
        body.refer("node_class", "node_class", class.as_str());
    }
    if own.weight > 0 {
        body.set("weight", own.weight);
    }
    if let Some(replicas) = own.replicas {
        body.set("replicas", replicas);
    }
    if !own.labels.is_empty() {
        body.set("labels", map(&own.labels));
    }
    if !own.annotations.is_empty() {
        body.set("annotations", map(&own.annotations));
    }
    if let Some(limits) = limits(&own.limits) {
        body.set("limits", limits);
    }
    ages(own, &usual, &mut body);
    requirements::blocks(&own.requirements, &mut body);
    for (kind, taints) in [
        ("taint", &own.taints),
        ("startup_taint", &own.startup_taints),
    ] {
        for own in taints {
            taint(kind, own, &mut body);
        }
    }
    disruption(own, &usual.disruption, &mut body);
    for policy in own
        .repair
        .iter()
        .filter(|repair| !usual.repair.contains(repair))
    {
        let mut inner = HclBody::default();
        inner.set("condition", policy.condition.as_str());
        inner.set("status", policy.status.as_str());
        inner.set("after", duration(policy.after));
        body.block("repair", None, inner);
    }
    body
}

fn ages(own: &Pool, usual: &Pool, body: &mut HclBody) {
    for (name, own, usual) in [
        ("expire_after", own.expire_after, usual.expire_after),
        (
            "expire_hard_after",
            own.expire_hard_after,
            usual.expire_hard_after,
        ),
        (
            "termination_grace_period",
            own.termination_grace_period,
            usual.termination_grace_period,
        ),
    ] {
        if own != usual {
            body.set(name, duration(own));
        }
    }
    for (name, own, usual) in [
        ("launch_timeout", own.launch_timeout, usual.launch_timeout),
        (
            "registration_timeout",
            own.registration_timeout,
            usual.registration_timeout,
        ),
        (
            "initialization_timeout",
            own.initialization_timeout,
            usual.initialization_timeout,
        ),
    ] {
        if own != usual {
            body.set(name, duration(Some(own)));
        }
    }
    if own.repair.is_empty() {
        body.set("auto_repair", false);
    }
}

fn taint(kind: &'static str, own: &Taint, body: &mut HclBody) {
    let mut inner = HclBody::default();
    inner.set("effect", effect(own.effect));
    if !own.value.is_empty() {
        inner.set("value", own.value.as_str());
    }
    body.block(kind, Some(&own.key), inner);
}

fn disruption(pool: &Pool, usual: &Disruption, body: &mut HclBody) {
    let own = &pool.disruption;
    let mut inner = HclBody::default();
    // This does not apply to static pools.
    if pool.replicas.is_none() {
        if own.consolidation != usual.consolidation {
            let name = match own.consolidation {
                Consolidation::Empty => "empty",
                Consolidation::Balanced => "balanced",
                Consolidation::EmptyOrUnderutilized => "empty_or_underutilized",
            };
            inner.set("consolidation", name);
        }
        if own.consolidate_after != usual.consolidate_after {
            inner.set("consolidate_after", duration(own.consolidate_after));
        }
        if own.spot_to_spot_min_types != usual.spot_to_spot_min_types {
            inner.set("spot_to_spot_min_types", own.spot_to_spot_min_types);
        }
        if let Some(threshold) = own.utilization_threshold {
            inner.set("utilization_threshold", threshold);
        }
    }
    if own.safety == Safety::Conservative {
        inner.set("safety", "conservative");
    }
    for (name, own, usual) in [
        ("min_age", own.min_age, usual.min_age),
        ("unneeded_for", own.unneeded_for, usual.unneeded_for),
        ("drain_timeout", own.drain_timeout, usual.drain_timeout),
    ] {
        if own != usual {
            inner.set(name, duration(Some(own)));
        }
    }
    match own.on_blocked {
        OnBlocked::Wait => {}
        OnBlocked::Abort => inner.set("on_blocked", "abort"),
        OnBlocked::Force => inner.set("on_blocked", "force"),
    }
    if own.budgets != usual.budgets {
        own.budgets.iter().for_each(|own| budget(own, &mut inner));
    }
    for window in &own.windows {
        let mut when = HclBody::default();
        when.set("action", if window.allows { "allow" } else { "deny" });
        inner.block("window", None, when);
    }
    if !inner.is_empty() {
        body.block("disruption", None, inner);
    }
}

fn budget(own: &Budget, body: &mut HclBody) {
    let mut inner = HclBody::default();
    inner.set(
        "nodes",
        match own.nodes {
            BudgetNodes::Nodes(count) => count.to_string(),
            BudgetNodes::Percent(percent) => format!("{percent}%"),
        },
    );
    if let Some(rate) = own.rate {
        inner.set("rate", rate.to_string());
    }
    if !own.reasons.is_empty() {
        let reasons = own.reasons.iter().map(|reason| reason.as_str().to_owned());
        inner.set("reasons", reasons.collect::<Vec<String>>());
    }
    if let Some(window) = &own.during {
        inner.set("schedule", window.expression());
        inner.set("duration", duration(Some(window.duration())));
        if !matches!(window.zone(), "UTC" | "Etc/UTC") {
            inner.set("timezone", window.zone());
        }
    }
    body.block("budget", None, inner);
}

/// An overlay.
pub(super) fn overlay(own: &Overlay) -> HclBody {
    let mut body = HclBody::default();
    if own.weight > 0 {
        body.set("weight", own.weight);
    }
    if let Some(price) = own.price {
        let name = match price {
            PriceAdjustment::Absolute(_) => "price",
            _ => "price_adjustment",
        };
        body.set(name, adjustment(price));
    }
    if !own.capacity.is_empty() {
        let each = own.capacity.iter();
        let each = each.map(|(name, amount)| (name.as_str(), *amount));
        body.set("capacity", quantities(each));
    }
    requirements::blocks(&own.requirements, &mut body);
    body
}

/// A buffer. Tolerations of its pool's taints are omitted.
pub(super) fn buffer(own: &Buffer) -> HclBody {
    let mut body = HclBody::default();
    if let Some(pool) = &own.pool {
        body.refer("pool", "pool", pool.as_str());
    }
    if let Some(replicas) = own.replicas {
        body.set("replicas", replicas);
    }
    if let Some(percentage) = own.percentage {
        body.set("percentage", percentage);
    }
    if !own.limits.is_empty() {
        let each = own.limits.iter();
        let each = each.map(|(name, most)| (name.as_str(), *most));
        body.set("limits", quantities(each));
    }
    if let Some(window) = &own.during {
        body.set("during", window.expression());
    }
    if let Some(pod) = &own.pod {
        body.block("pod", None, buffer_pod(pod));
    }
    if let Some(scalable) = &own.scalable {
        let mut inner = HclBody::default();
        let kind = match scalable.kind {
            ScalableKind::Deployment => 0,
            ScalableKind::StatefulSet => 1,
            ScalableKind::ReplicaSet => 2,
        };
        inner.set("kind", ScalableKind::NAMES[kind]);
        inner.set("namespace", scalable.namespace.as_str());
        inner.set("name", scalable.name.as_str());
        body.block("scalable", None, inner);
    }
    body
}

/// The pod of a buffer.
pub(super) fn buffer_pod(own: &BufferPod) -> HclBody {
    let mut inner = HclBody::default();
    inner.set("requests", requests(&own.requests));
    if !own.node_selector.is_empty() {
        inner.set("node_selector", map(&own.node_selector));
    }
    for own in &own.tolerations {
        toleration(own, &mut inner);
    }
    inner
}

fn toleration(own: &Toleration, body: &mut HclBody) {
    let mut inner = HclBody::default();
    if let Some(own) = own.effect {
        inner.set("effect", effect(own));
    }
    if own.operator == TolerationOperator::Equal {
        inner.set("value", own.value.as_str());
    }
    body.block("toleration", Some(&own.key), inner);
}
