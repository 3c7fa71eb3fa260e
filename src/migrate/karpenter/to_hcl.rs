//! Converts a configuration to blocks, without arguments that have their default value.

use jiff::SignedDuration;
use serde_json::Value;

use super::requirements;
use crate::migrate::format_units::{
    format_adjustment, format_duration, format_quantities, format_requests,
};
use crate::migrate::hcl::HclBody;
use crate::model::buffer::{Buffer, BufferPod, ScalableKind};
use crate::model::overlay::{Overlay, PriceAdjustment};
use crate::model::pool::{
    Budget, BudgetNodes, Consolidation, Disruption, Limits, OnBlocked, Pool, Safety,
};
use crate::model::taint::{Taint, Toleration, TolerationOperator};

// Node classes as HCL blocks.
pub(super) mod node_class;

/// A map of strings.
fn string_map<'a>(items: impl IntoIterator<Item = (&'a String, &'a String)>) -> Value {
    Value::Object(
        items.into_iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect(),
    )
}

/// Limits, including `nodes`.
pub(super) fn limits_value(limits: &Limits) -> Option<Value> {
    let capacity = limits.capacity.iter().map(|(name, amount)| (name.as_str(), *amount));
    let nodes = limits.nodes.map(|count| ("nodes", i64::from(count)));
    let all: Vec<(&str, i64)> = capacity.chain(nodes).collect();
    (!all.is_empty()).then(|| format_quantities(all))
}

/// A pool.
pub(super) fn pool_body(pool: &Pool) -> HclBody {
    let defaults = Pool::new(pool.name.as_str());
    let mut body = HclBody::default();
    if let Some(class) = &pool.node_class {
        body.set_reference("node_class", "node_class", class.as_str());
    }
    body.set_changed("weight", pool.weight, 0);
    body.set_some("replicas", pool.replicas);
    body.set_unless_empty("labels", string_map(&pool.labels));
    body.set_unless_empty("annotations", string_map(&pool.annotations));
    body.set_some("limits", limits_value(&pool.limits));
    set_ages(pool, &defaults, &mut body);
    requirements::requirement_blocks(&pool.requirements, &mut body);
    for (kind, taints) in [("taint", &pool.taints), ("startup_taint", &pool.startup_taints)] {
        for taint in taints {
            self::add_taint(kind, taint, &mut body);
        }
    }
    add_disruption(pool, &defaults.disruption, &mut body);
    for policy in pool.repair.iter().filter(|repair| !defaults.repair.contains(repair)) {
        let mut inner = HclBody::default();
        inner.set("condition", policy.condition.as_str());
        inner.set("status", policy.status.as_str());
        inner.set("after", format_duration(policy.after));
        body.add_block("repair", None, inner);
    }
    body
}

fn set_ages(pool: &Pool, defaults: &Pool, body: &mut HclBody) {
    let mut set = |name, age: fn(&Pool) -> Option<SignedDuration>| {
        body.set_changed(name, format_duration(age(pool)), format_duration(age(defaults)));
    };
    set("expire_after", |pool| pool.expire_after);
    set("expire_hard_after", |pool| pool.expire_hard_after);
    set("termination_grace_period", |pool| pool.termination_grace_period);
    set("launch_timeout", |pool| Some(pool.launch_timeout));
    set("registration_timeout", |pool| Some(pool.registration_timeout));
    set("initialization_timeout", |pool| Some(pool.initialization_timeout));
    if pool.repair.is_empty() {
        body.set("auto_repair", false);
    }
}

fn add_taint(kind: &'static str, taint: &Taint, body: &mut HclBody) {
    let mut inner = HclBody::default();
    inner.set("effect", taint.effect.as_str());
    inner.set_unless_empty("value", taint.value.as_str());
    body.add_block(kind, Some(&taint.key), inner);
}

fn add_disruption(pool: &Pool, defaults: &Disruption, body: &mut HclBody) {
    let disruption = &pool.disruption;
    let mut inner = HclBody::default();
    // Consolidation settings do not apply to static pools.
    if pool.replicas.is_none() {
        if disruption.consolidation != defaults.consolidation {
            let name = match disruption.consolidation {
                Consolidation::Empty => "empty",
                Consolidation::Balanced => "balanced",
                Consolidation::EmptyOrUnderutilized => "empty_or_underutilized",
            };
            inner.set("consolidation", name);
        }
        if disruption.consolidate_after != defaults.consolidate_after {
            inner.set("consolidate_after", format_duration(disruption.consolidate_after));
        }
        let (types, default) = (disruption.spot_to_spot_min_types, defaults.spot_to_spot_min_types);
        inner.set_changed("spot_to_spot_min_types", types, default);
        inner.set_some("utilization_threshold", disruption.utilization_threshold);
    }
    if disruption.safety == Safety::Conservative {
        inner.set("safety", "conservative");
    }
    for (name, value, default) in [
        ("min_age", disruption.min_age, defaults.min_age),
        ("unneeded_for", disruption.unneeded_for, defaults.unneeded_for),
        ("drain_timeout", disruption.drain_timeout, defaults.drain_timeout),
    ] {
        if value != default {
            inner.set(name, format_duration(Some(value)));
        }
    }
    match disruption.on_blocked {
        OnBlocked::Wait => {}
        OnBlocked::Abort => inner.set("on_blocked", "abort"),
        OnBlocked::Force => inner.set("on_blocked", "force"),
    }
    if disruption.budgets != defaults.budgets {
        for budget in &disruption.budgets {
            self::add_budget(budget, &mut inner);
        }
    }
    for window in &disruption.windows {
        let mut when = HclBody::default();
        when.set("action", if window.allows { "allow" } else { "deny" });
        inner.add_block("window", None, when);
    }
    body.add_block_unless_empty("disruption", inner);
}

fn add_budget(budget: &Budget, body: &mut HclBody) {
    let mut inner = HclBody::default();
    inner.set(
        "nodes",
        match budget.nodes {
            BudgetNodes::Nodes(count) => count.to_string(),
            BudgetNodes::Percent(percent) => format!("{percent}%"),
        },
    );
    inner.set_some("rate", budget.rate.map(|rate| rate.to_string()));
    let reasons = budget.reasons.iter();
    let reasons: Vec<&str> = reasons.map(|reason| reason.as_str()).collect();
    inner.set_unless_empty("reasons", reasons);
    if let Some(window) = &budget.during {
        inner.set("schedule", window.expression());
        inner.set("duration", format_duration(Some(window.duration())));
        if !matches!(window.zone(), "UTC" | "Etc/UTC") {
            inner.set("timezone", window.zone());
        }
    }
    body.add_block("budget", None, inner);
}

/// An overlay.
pub(super) fn overlay_body(overlay: &Overlay) -> HclBody {
    let mut body = HclBody::default();
    body.set_changed("weight", overlay.weight, 0);
    if let Some(price) = overlay.price {
        let name = match price {
            PriceAdjustment::Absolute(_) => "price",
            _ => "price_adjustment",
        };
        body.set(name, format_adjustment(price));
    }
    let capacity = overlay.capacity.iter();
    let capacity = capacity.map(|(name, amount)| (name.as_str(), *amount));
    body.set_unless_empty("capacity", format_quantities(capacity));
    requirements::requirement_blocks(&overlay.requirements, &mut body);
    body
}

/// A buffer. Tolerations of its pool's taints are omitted.
pub(super) fn buffer_body(buffer: &Buffer) -> HclBody {
    let mut body = HclBody::default();
    if let Some(pool) = &buffer.pool {
        body.set_reference("pool", "pool", pool.as_str());
    }
    body.set_some("replicas", buffer.replicas);
    body.set_some("percentage", buffer.percentage);
    let limits = buffer.limits.iter();
    let limits = limits.map(|(name, amount)| (name.as_str(), *amount));
    body.set_unless_empty("limits", format_quantities(limits));
    let window = buffer.during.as_ref();
    body.set_some("during", window.map(|window| window.expression()));
    if let Some(pod) = &buffer.pod {
        body.add_block("pod", None, buffer_pod_body(pod));
    }
    if let Some(scalable) = &buffer.scalable {
        let mut inner = HclBody::default();
        let kind = match scalable.kind {
            ScalableKind::Deployment => 0,
            ScalableKind::StatefulSet => 1,
            ScalableKind::ReplicaSet => 2,
        };
        inner.set("kind", ScalableKind::NAMES[kind]);
        inner.set("namespace", scalable.namespace.as_str());
        inner.set("name", scalable.name.as_str());
        body.add_block("scalable", None, inner);
    }
    body
}

/// The pod of a buffer.
pub(super) fn buffer_pod_body(pod: &BufferPod) -> HclBody {
    let mut inner = HclBody::default();
    inner.set("requests", format_requests(&pod.requests));
    inner.set_unless_empty("node_selector", string_map(&pod.node_selector));
    for toleration in &pod.tolerations {
        self::add_toleration(toleration, &mut inner);
    }
    inner
}

fn add_toleration(toleration: &Toleration, body: &mut HclBody) {
    let mut inner = HclBody::default();
    inner.set_some("effect", toleration.effect.map(|effect| effect.as_str()));
    if toleration.operator == TolerationOperator::Equal {
        inner.set("value", toleration.value.as_str());
    }
    body.add_block("toleration", Some(&toleration.key), inner);
}
