//! Renders an explained pool as text and as one JSON object.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::model::instance::{OfferingKey, Price};
use crate::plan::explain_pool::{ExplainedPool, Launches, Outlook, RejectionGroup, Stay};
use crate::plan::render::{self, write_unlisted};
use crate::plan::render_rejections::{
    quantity_json, rejection_json, rejection_line, rejections_json,
};
use crate::scheduling::pool_availability::{
    LimitOwner, PoolAvailability, RemainingLimit, RequirementEffect,
};
use crate::scheduling::rejection::{UnavailableSummary, bounded_text, format_quantity};

/// Maximum number of listed items. Further items are only counted.
const TOLD: usize = 10;

/// Maximum number of listed labels, limits and zones.
const LISTED: usize = 50;

impl LimitOwner {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Cluster => "cluster",
            Self::Fleet => "fleet",
            Self::Reservation(_) => "reservation",
        }
    }
}

impl RemainingLimit {
    fn resource_name(&self) -> &str {
        self.resource.as_deref().unwrap_or("nodes")
    }

    /// Returns the used amount, including that of other pools with the same limit.
    fn used_amount(&self) -> i64 {
        self.most.saturating_sub(self.left)
    }

    fn json(&self) -> Value {
        let name = self.resource_name();
        let [used, left] = [self.used_amount(), self.left].map(|quantity| match self.closed {
            Some(_) => Value::Null,
            None => quantity_json(name, quantity),
        });
        let mut value = json!({
            "of": self.of.as_str(),
            "resource": bounded_text(name),
            "limit": quantity_json(name, self.most),
            "used": used,
            "left": left,
            "closed": self.closed.as_ref().map(bounded_text),
        });
        if let LimitOwner::Reservation(id) = &self.of {
            value["reservation"] = json!(bounded_text(id));
        }
        value
    }

    fn text(&self) -> String {
        let whose = match &self.of {
            LimitOwner::Pool => String::new(),
            LimitOwner::Reservation(id) => format!(" of reservation {}", bounded_text(id)),
            other => format!(" of the {}", other.as_str()),
        };
        let name = self.resource_name();
        let most = format_quantity(name, self.most);
        let head = format!("{} limit {most}{whose}", bounded_text(name));
        if let Some(closed) = &self.closed {
            return format!("{head}: {}", bounded_text(closed));
        }
        let used = format_quantity(name, self.used_amount());
        match self.left {
            ..0 => format!("{head} is exceeded: {used} in use"),
            left => format!("{head}: {used} in use, {} left", format_quantity(name, left)),
        }
    }
}

fn offering_json(key: &OfferingKey, price: Price) -> Value {
    let mut value = render::offering_json(key, price);
    if let Some(id) = &key.reservation {
        value["reservation"] = json!(id.as_str());
    }
    value
}

fn range_json(range: &PoolAvailability) -> Value {
    let requirements = range.asked.iter().take(LISTED).map(|effect| {
        let (label, wanted) = (bounded_text(&effect.key), bounded_text(&effect.wanted));
        json!({ "label": label, "wanted": wanted, "types": effect.types })
    });
    let zones = range.zones.iter().take(LISTED);
    let zones = zones.map(|(zone, count)| (bounded_text(zone), json!(count)));
    let ways = range.capacity_types.iter();
    let ways = ways.map(|(way, count)| (way.as_str().to_owned(), json!(count)));
    let cheapest = range.cheapest.iter();
    let cheapest = cheapest.map(|(key, price)| offering_json(key, *price));
    json!({
        "catalog_types": range.catalog,
        "requirements": requirements.collect::<Vec<_>>(),
        "suited_types": range.suited,
        "crowded_types": range.crowded,
        "types": range.types,
        "offerings": range.offering_count(),
        "zones": zones.collect::<Map<_, _>>(),
        "capacity_types": ways.collect::<Map<_, _>>(),
        "cheapest": cheapest.collect::<Vec<_>>(),
        "unavailable_offerings": range.held.as_ref().map(|held| json!({
            "offerings": held.offerings,
            "first": bounded_text(&held.first),
            "until": held.until.map(|at| at.to_string()),
            "unregistered": held.unregistered,
        })),
        "stopped_by": range.barren.as_ref().map(rejection_json),
    })
}

fn launches_json(launches: &Launches) -> Value {
    let mut value = offering_json(&launches.first, launches.price);
    value["nodes"] = json!(launches.nodes);
    value["pods"] = json!(launches.pods);
    value["virtual_pods"] = json!(launches.virtual_pods);
    value
}

fn stopped_json(group: &RejectionGroup) -> Value {
    json!({
        "code": group.why.code.as_str(),
        "pods": group.pods,
        "first": bounded_text(&group.first),
        "text": group.why.rejection_text(),
    })
}

fn stay_json(stay: &Stay) -> Value {
    json!({
        "verdict": stay.first.verdict.code(),
        "nodes": stay.nodes,
        "first": bounded_text(&stay.first.node),
        "text": bounded_text(&stay.first.verdict),
    })
}

impl ExplainedPool<'_> {
    /// Renders one JSON object.
    pub fn json(&self) -> Value {
        let nodes = &self.holding.nodes;
        let pause = self.pause.as_ref().map(|(scope, pause)| {
            json!({
                "of": scope.as_str(),
                "until": pause.until.map(|at| at.to_string()),
                "reason": bounded_text(&pause.reason),
            })
        });
        let short = self.short.as_ref().map(|shortfall| {
            let reasons = rejections_json(&shortfall.reasons);
            json!({ "missing": shortfall.missing, "reasons": reasons })
        });
        let outlooks = self.outlooks.iter().map(|(reason, outlook)| {
            json!({
                "reason": reason.as_str(),
                "leave": outlook.leave,
                "stay": outlook.stay.iter().map(stay_json).collect::<Vec<_>>(),
            })
        });
        let limits = self.range.limits.iter().take(LISTED);
        json!({
            "format_version": render::FORMAT_VERSION,
            "pool": bounded_text(&self.pool.name),
            "weight": self.pool.weight,
            "node_class": self.pool.node_class.as_ref().map(bounded_text),
            "replicas": self.pool.replicas,
            "paused": pause,
            "nodes": {
                "ready": nodes.ready,
                "unready": nodes.unready,
                "starting": nodes.starting,
                "leaving": nodes.leaving,
            },
            "usd_per_h": render::round_usd(self.holding.cost.usd_per_h()),
            "limits": limits.map(RemainingLimit::json).collect::<Vec<_>>(),
            "range": range_json(&self.range),
            "launches": self.launches.iter().take(TOLD).map(launches_json).collect::<Vec<_>>(),
            "launched": {
                "nodes": self.sum_launches(|launches| launches.nodes),
                "pods": self.sum_launches(|launches| launches.pods),
                "usd_per_h": render::round_usd(self.launched_usd()),
            },
            "short": short,
            "unplaced": self.unplaced.iter().map(stopped_json).collect::<Vec<_>>(),
            "candidates": self.candidates,
            "verdicts": outlooks.collect::<Vec<_>>(),
        })
    }

    fn sum_launches(&self, of: impl Fn(&Launches) -> usize) -> usize {
        self.launches.iter().map(of).sum()
    }

    #[expect(clippy::cast_precision_loss, reason = "nodes are few enough to be exact")]
    fn launched_usd(&self) -> f64 {
        let all = self.launches.iter();
        // The sum of an empty iterator would be -0.0.
        all.fold(0.0, |sum, launches| sum + launches.price.usd_per_h() * launches.nodes as f64)
    }

    /// Renders text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.write_head(&mut out);
        write_range(&mut out, &self.range);
        self.write_launches(&mut out);
        self.write_candidates(&mut out);
        out
    }

    fn write_head(&self, out: &mut String) {
        let pool = self.pool;
        let class = pool.node_class.as_ref().map(bounded_text);
        let class = class.map_or(String::new(), |class| format!(", node class {class}"));
        // Writing to a String cannot fail.
        let weight = match pool.replicas {
            // A static pool has no weight.
            Some(_) => String::new(),
            None => format!(", weight {}", pool.weight),
        };
        let _ = writeln!(out, "Pool {}{weight}{class}", bounded_text(&pool.name));
        if let Some(replicas) = pool.replicas {
            let nodes = count_with_noun(replicas, "node");
            let _ = writeln!(out, "  static: {nodes}, regardless of pods");
        }
        let nodes = &self.holding.nodes;
        let _ = writeln!(
            out,
            "  {}: {} ready, {} unready, {} starting, {} terminating; {:.4} $/h",
            count_with_noun(nodes.total(), "node"),
            nodes.ready,
            nodes.unready,
            nodes.starting,
            nodes.leaving,
            self.holding.cost.usd_per_h()
        );
        for limit in self.range.limits.iter().take(LISTED) {
            let _ = writeln!(out, "  {}", limit.text());
        }
        write_unlisted(out, "  ", self.range.limits.len(), LISTED);
        if let Some((scope, pause)) = &self.pause {
            let until = pause.until.map_or("until resumed".to_owned(), |at| format!("until {at}"));
            let (scope, why) = (scope.as_str(), bounded_text(&pause.reason));
            let _ = writeln!(out, "  ! the {scope} is paused {until}: {why}");
        }
    }

    /// Renders what would be launched now.
    fn write_launches(&self, out: &mut String) {
        let _ = writeln!(out);
        if self.launches.is_empty() {
            let _ = writeln!(out, "  It would launch no nodes now.");
        } else {
            let _ = writeln!(
                out,
                "  + It would launch {} now, for {}, at {:.4} $/h:",
                count_with_noun(self.sum_launches(|launches| launches.nodes), "node"),
                count_with_noun(self.sum_launches(|launches| launches.pods), "pod"),
                self.launched_usd()
            );
        }
        for launch in self.launches.iter().take(TOLD) {
            let price = launch.price.usd_per_h();
            let room = match launch.virtual_pods {
                0 => String::new(),
                count => {
                    let pods = count_with_noun(count, "pod");
                    format!(", and {pods} of capacity buffers")
                }
            };
            let (nodes, first) = (launch.nodes, bounded_text(&launch.first));
            let pods = count_with_noun(launch.pods, "pod");
            let _ = writeln!(out, "      {nodes} {first}, {price:.4} $/h each: {pods}{room}");
        }
        write_unlisted(out, "      ", self.launches.len(), TOLD);
        if let Some(shortfall) = &self.short {
            let nodes = count_with_noun(shortfall.missing, "more node");
            let _ = writeln!(out, "  ! {nodes} cannot be launched:");
            for rejection in shortfall.reasons.iter().take(TOLD) {
                let _ = writeln!(out, "      {}", rejection_line(rejection));
            }
        }
        let pods: usize = self.unplaced.iter().map(|group| group.pods).sum();
        if pods > 0 {
            let pods = count_with_noun(pods, "pod");
            let _ = writeln!(out, "  ! {pods} unschedulable, by the reason in this pool:");
        }
        for group in self.unplaced.iter().take(TOLD) {
            let (code, first) = (group.why.code.as_str(), bounded_text(&group.first));
            let (pods, text) = (group.pods, group.why.rejection_text());
            let _ = writeln!(out, "      {pods} [{code}], such as {first}: {text}");
        }
        let others = self.unplaced.iter().skip(TOLD);
        let others: usize = others.map(|group| group.pods).sum();
        if others > 0 {
            let pods = count_with_noun(others, "pod");
            let _ = writeln!(out, "      and {pods} for other reasons");
        }
    }

    /// Summarizes the candidates for one reason.
    fn outlook_text(&self, outlook: &Outlook) -> String {
        let stay = outlook.kept_nodes();
        let others = self.candidates.saturating_sub(self.leaving + stay);
        let mut all = Vec::new();
        if outlook.leave > 0 {
            all.push(format!("{} would be disrupted now", outlook.leave));
        }
        if stay > 0 {
            all.push(format!("{stay} kept"));
        }
        match (all.is_empty(), others) {
            (true, _) => all.push("none".to_owned()),
            (false, 0) => {}
            (false, others) => all.push(format!("{others} not affected")),
        }
        all.join(", ")
    }

    /// Renders the candidates.
    fn write_candidates(&self, out: &mut String) {
        if self.candidates == 0 {
            let _ = writeln!(out, "\n  It has no disruption candidates.");
            return;
        }
        let count = count_with_noun(self.candidates, "node");
        let _ = writeln!(out, "\n  Disruption candidates: {count}");
        let names = self.outlooks.iter().map(|(reason, _)| reason.as_str().len());
        let width = names.max().unwrap_or(0);
        for (reason, outlook) in &self.outlooks {
            let reason = reason.as_str();
            let sign = if outlook.leave > 0 { '-' } else { ' ' };
            let text = self.outlook_text(outlook);
            let _ = writeln!(out, "  {sign} {reason:width$}  {text}");
            for stay in outlook.stay.iter().take(TOLD) {
                let (code, first) = (stay.first.verdict.code(), bounded_text(&stay.first.node));
                let (nodes, text) = (stay.nodes, bounded_text(&stay.first.verdict));
                let _ = writeln!(out, "      {nodes} [{code}], such as {first}: {text}");
            }
            write_unlisted(out, "      ", outlook.stay.len(), TOLD);
        }
    }
}

/// Renders what a pool can launch.
fn write_range(out: &mut String, range: &PoolAvailability) {
    let _ = writeln!(
        out,
        "\n  It can launch {} of {} instance types, {}",
        range.types,
        range.catalog,
        count_with_noun(range.offering_count(), "offering")
    );
    if range.offering_count() > 0 {
        let zones = range.zones.iter().take(LISTED);
        let zones = zones.map(|(zone, count)| format!("{} ({count})", bounded_text(zone)));
        let zones: Vec<String> = zones.collect();
        let ways = range.capacity_types.iter();
        let ways = ways.map(|(way, count)| format!("{} ({count})", way.as_str()));
        let ways: Vec<String> = ways.collect();
        let _ = writeln!(out, "  zones: {}", zones.join(", "));
        let ways = ways.join(", ");
        let _ = writeln!(out, "  capacity types: {ways}; the cheapest offerings:");
    }
    for (key, price) in &range.cheapest {
        let (key, price) = (bounded_text(key), price.usd_per_h());
        let _ = writeln!(out, "      {key}, {price:.4} $/h");
    }
    if !range.asked.is_empty() {
        let _ = writeln!(out, "  Instance types that satisfy each of its requirements:");
    }
    let total = range.catalog;
    for RequirementEffect { key, wanted, types } in range.asked.iter().take(LISTED) {
        let sign = if *types == 0 { '!' } else { ' ' };
        let (key, wanted) = (bounded_text(key), bounded_text(wanted));
        let _ = writeln!(out, "    {sign} {key} {wanted}: {types} of {total} types");
    }
    write_unlisted(out, "      ", range.asked.len(), LISTED);
    if !range.asked.is_empty() {
        let (suited, sign) = (range.suited, if range.suited == 0 { '!' } else { ' ' });
        let _ = writeln!(out, "    {sign} all requirements: {suited} of {total} types");
    }
    if range.crowded > 0 {
        let types = count_with_noun(range.crowded, "type");
        let _ = writeln!(out, "  {types} of these have no room for its DaemonSets");
    }
    if let Some(held) = &range.held {
        let _ = writeln!(out, "  ! {}", held_text(held));
    }
    if let Some(rejection) = &range.barren {
        let (text, code) = (rejection.rejection_text(), rejection.code.as_str());
        let _ = writeln!(out, "  ! It cannot launch nodes now: {text} [{code}]");
    }
}

fn held_text(held: &UnavailableSummary) -> String {
    let (count, first) = (held.offerings, bounded_text(&held.first));
    let count = count_with_noun(count, "offering");
    let until = held.until.map(|at| format!("; next retry at {at}"));
    let until = until.unwrap_or_default();
    let why = match held.unregistered {
        true => "unavailable because nodes of the pool do not register in some zones",
        false => "unavailable after failed launches",
    };
    format!("{why}: {count}, such as {first}{until}")
}

/// Formats a count with a noun.
fn count_with_noun(count: impl TryInto<usize>, name: &str) -> String {
    match count.try_into().unwrap_or(usize::MAX) {
        1 => format!("1 {name}"),
        count => format!("{count} {name}s"),
    }
}
