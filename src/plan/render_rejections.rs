//! Formats rejections as lines of text and as JSON with the numbers in separate fields.

use serde_json::{Value, json};

use crate::model::requirement::Incompatible;
use crate::scheduling::PoolRejection;
use crate::scheduling::rejection::{
    DomainDetail, RejectionDetail, ResourceShortfall, RuleKind, TopologyRuleDetail,
    UnavailableSummary, bounded_text,
};

/// Formats a rejection as one line.
pub fn rejection_line(rejection: &PoolRejection) -> String {
    let (text, code) = (rejection.rejection_text(), rejection.code.as_str());
    match &rejection.pool {
        Some(pool) => format!("pool {pool}: {text} [{code}]"),
        None => format!("{text} [{code}]"),
    }
}

/// Formats a rejection as a JSON object. `nearest` has the numbers, in cores, bytes or whole units.
pub fn rejection_json(rejection: &PoolRejection) -> Value {
    json!({
        "pool": rejection.pool.as_ref().map(|pool| pool.as_str()),
        "code": rejection.code.as_str(),
        "text": rejection.rejection_text(),
        "nearest": nearest_json(&rejection.miss),
    })
}

/// Formats rejections as a JSON list.
pub(super) fn rejections_json(rejections: &[PoolRejection]) -> Value {
    json!(rejections.iter().map(rejection_json).collect::<Vec<_>>())
}

/// Converts a quantity to a JSON number: cores, bytes or whole units.
#[expect(
    clippy::cast_precision_loss,
    reason = "JSON numbers are floats, and the rounding error of millicores does not matter"
)]
pub fn quantity_json(name: &str, amount: i64) -> Value {
    match name {
        "cpu" => json!(amount as f64 / 1000.0),
        _ => json!(amount),
    }
}

fn label_json(no: &Incompatible) -> Value {
    let offered = no.offered().map(bounded_text);
    let wanted = bounded_text(no.wanted());
    json!({ "label": bounded_text(&no.key), "wanted": wanted, "offered": offered })
}

fn nearest_json(miss: &RejectionDetail) -> Value {
    match miss {
        RejectionDetail::Told(_) => Value::Null,
        RejectionDetail::Priority { priority, cutoff } => {
            json!({ "priority": priority, "least": cutoff })
        }
        RejectionDetail::Gang { name, placed, least } => {
            json!({ "gang": bounded_text(name), "placed": placed, "least": least })
        }
        RejectionDetail::Taint(taint) => json!({ "taint": bounded_text(taint) }),
        RejectionDetail::Label(no) => label_json(no),
        RejectionDetail::Types { key, wanted, types } => {
            json!({ "label": key, "wanted": wanted, "types": types })
        }
        RejectionDetail::Ports { types } => json!({ "types": types }),
        RejectionDetail::Daemon { types, daemon } => json!({ "types": types, "daemon": daemon }),
        RejectionDetail::Resources { short, nearest, types } => {
            let short: Vec<Value> = short.iter().map(shortfall_json).collect();
            let nearest = nearest.as_ref().map(|nearest| nearest.as_str());
            json!({ "short": short, "instance_type": nearest, "types": types })
        }
        RejectionDetail::Offering { types, first, wanted, sold } => json!({
            "types": types, "instance_type": first.as_str(), "wanted": wanted, "offered": sold,
        }),
        RejectionDetail::Held(summary) => unavailable_json(summary),
        RejectionDetail::Limit { name, limit, left, least, smallest, .. } => json!({
            "resource": bounded_text(name),
            "limit": quantity_json(name, *limit),
            "left": quantity_json(name, *left),
            "needed": quantity_json(name, *least),
            "instance_type": smallest.as_str(),
        }),
        RejectionDetail::Nodes { limit, .. } => json!({ "resource": "nodes", "limit": limit }),
        RejectionDetail::Values { key, least, count } => {
            json!({ "label": bounded_text(key), "least": least, "values": count })
        }
        RejectionDetail::Places { reachable, open, rules } => {
            let rules: Vec<Value> = rules.iter().map(rule_json).collect();
            json!({ "places": reachable, "open": open, "rules": rules })
        }
        RejectionDetail::Unsettled { count, hosts } => {
            json!({ "in_flight": count, "hosts": hosts })
        }
    }
}

fn shortfall_json(short: &ResourceShortfall) -> Value {
    let name = &short.name;
    let [asked, left] = [short.asked, short.left].map(|amount| quantity_json(name, amount));
    json!({ "resource": name, "needed": asked, "left": left })
}

fn unavailable_json(summary: &UnavailableSummary) -> Value {
    json!({
        "offerings": summary.offerings,
        "first": summary.first.to_string(),
        "until": summary.until.map(|until| until.to_string()),
        "unregistered": summary.unregistered,
    })
}

fn domain_json(place: &DomainDetail) -> Value {
    json!({ "name": place.name, "pods": place.pods, "reachable": place.is_reachable })
}

fn rule_json(rule: &TopologyRuleDetail) -> Value {
    let mut value = json!({
        "rule": rule.kind.as_str(),
        "labels": rule.keys,
        "places": rule.reachable,
        "open": rule.open,
        "pods": rule.pods,
        "told": rule.places.iter().map(domain_json).collect::<Vec<_>>(),
    });
    if let RuleKind::Spread(skew) = rule.kind {
        value["max_skew"] = json!(skew);
    }
    value
}
