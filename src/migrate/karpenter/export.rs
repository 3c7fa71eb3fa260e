//! Converts a configuration to Karpenter objects, and reports dropped arguments.

// CapacityBuffers and PodTemplates.
mod buffer;

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::field_tables::{KUBELET, NODE_CLASS, OVERLAY, POOL};
use super::{placeholders, requirements, to_hcl};
use crate::config::Config;
use crate::migrate::dropped::{DroppedField, DroppedFields};
use crate::migrate::field_mapping;
use crate::migrate::field_mapping::{put_field, report_rest};
use crate::migrate::hcl::{HclBody, HclItem, HclValue};
use crate::model::cluster::{Batching, Binding, Cluster, Safeguards, Scheduling};
use crate::model::fleet::FleetLimits;
use crate::model::node_class::NodeClass;
use crate::model::overlay::Overlay;
use crate::model::pool::{CoolDown, Pool};
use crate::text::yaml;

/// Why a budget cannot be exported.
#[derive(Debug, Error)]
#[error("{0}")]
struct BudgetError(&'static str);

const EXPIRATION: &str = "in Karpenter, budgets do not apply to expiration";

/// Why a configuration cannot be exported.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExportError {
    /// The configuration does not have the cluster.
    #[error("the configuration has no cluster {wanted:?}; it has {names}")]
    NoCluster {
        /// The requested cluster.
        wanted: String,
        /// The clusters of the configuration.
        names: String,
    },
    /// The configuration has several clusters and none was chosen.
    #[error("the configuration has several clusters: choose one of {names} with --cluster")]
    Several {
        /// The clusters of the configuration.
        names: String,
    },
}

/// The result of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// YAML.
    pub text: String,
    /// The dropped arguments.
    pub losses: Vec<DroppedField>,
}

/// A YAML document with the dropped arguments.
struct ExportedDocument {
    object: Map<String, Value>,
    losses: Vec<DroppedField>,
}

/// Converts the configuration of one cluster to Karpenter objects.
///
/// # Errors
///
/// Fails if the cluster does not exist, or if there are several and none is chosen.
pub fn export_cluster(config: &Config, cluster: Option<&str>) -> Result<Exported, ExportError> {
    let cluster = choose_cluster(config, cluster)?;
    let mut documents = Vec::new();
    for class in &cluster.node_classes {
        documents.push(export_node_class(class, cluster));
    }
    documents.extend(cluster.pools.iter().map(export_pool));
    documents.extend(cluster.overlays.iter().map(export_overlay));
    for buffer in &cluster.buffers {
        documents.extend(buffer::export_buffer(buffer));
    }
    let around = dropped_settings(cluster, &config.fleet);
    let mut text = String::new();
    for loss in &around {
        text.push_str(&format!("# {}\n", note_text(loss)));
    }
    for document in &documents {
        let notes: Vec<String> = document.losses.iter().map(note_text).collect();
        text.push_str(&yaml::write_document(&notes, &document.object));
    }
    let lost = documents.into_iter().flat_map(|document| document.losses);
    Ok(Exported { text, losses: around.into_iter().chain(lost).collect() })
}

fn note_text(loss: &DroppedField) -> String {
    let text = format!("export: {loss}");
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn choose_cluster<'a>(
    config: &'a Config,
    wanted: Option<&str>,
) -> Result<&'a Cluster, ExportError> {
    let clusters = config.clusters.as_slice();
    let names: Vec<&str> = clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    let names = match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(", "),
    };
    match (wanted, clusters) {
        (None, [only]) => Ok(only),
        (None, [_, ..]) => Err(ExportError::Several { names }),
        (wanted, _) => {
            let wanted = wanted.unwrap_or("*");
            let found = clusters.iter().find(|cluster| cluster.name.as_str() == wanted);
            found.ok_or_else(|| ExportError::NoCluster { wanted: wanted.to_owned(), names })
        }
    }
}

/// Creates an object of this kind.
fn karpenter_object(
    api: &str,
    kind: &str,
    name: &str,
    spec: Map<String, Value>,
) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), json!(api));
    object.insert("kind".to_owned(), json!(kind));
    object.insert("metadata".to_owned(), json!({ "name": name }));
    object.insert("spec".to_owned(), Value::Object(spec));
    object
}

const NODES: &str = "karpenter.sh/v1";
const EC2: &str = "karpenter.k8s.aws";

fn export_pool(pool: &Pool) -> ExportedDocument {
    let name = pool.name.as_str();
    let path = format!("pool.{name}");
    let mut losses = DroppedFields::default();
    let mut body = to_hcl::pool_body(pool);
    let mut spec = Map::new();
    // An empty `template` comes first, so that the fields are in the usual order.
    put_field(&mut spec, "template", json!({}));
    let class = match body.take_argument("node_class") {
        Some(HclValue::Reference(_, class)) => class,
        _ => {
            losses.add_missing(format!("{path}.node_class"), "required in a NodePool");
            placeholders::NODE_CLASS.to_owned()
        }
    };
    let reference = json!({ "group": EC2, "kind": "EC2NodeClass", "name": class });
    put_field(&mut spec, "template.spec.nodeClassRef", reference);
    let rules = requirements::export_requirements(&mut body);
    put_field(&mut spec, "template.spec.requirements", rules);
    let budgets = export_budgets(&mut body, &path, &mut losses);
    field_mapping::export_fields(POOL, &mut body, &path, &mut spec, &mut losses);
    if let Some(budgets) = budgets {
        put_field(&mut spec, "disruption.budgets", budgets);
    }
    report_rest(&body, &path, &mut losses);
    // Karpenter requires `consolidateAfter` if `disruption` has any other field.
    if let Some(Value::Object(disruption)) = spec.get_mut("disruption") {
        let after = disruption.entry("consolidateAfter");
        after.or_insert_with(|| json!("0s"));
    }
    ExportedDocument { object: karpenter_object(NODES, "NodePool", name, spec), losses: losses.all }
}

const WITHOUT: &str = "required in an EC2NodeClass";

/// Exports the budgets of a pool. A budget that cannot be exported completely is dropped.
fn export_budgets(body: &mut HclBody, path: &str, losses: &mut DroppedFields) -> Option<Value> {
    let blocks = body.block_body("disruption")?.take_blocks("budget");
    if blocks.is_empty() {
        return None;
    }
    let mut exported = Vec::new();
    for (index, mut block) in blocks.into_iter().enumerate() {
        let budget_path = format!("{path}.disruption.budget[{index}]");
        match export_budget(&mut block.body, &budget_path, losses) {
            Ok(object) => exported.push(Value::Object(object)),
            Err(error) => losses.add(budget_path, error.to_string()),
        }
    }
    // Without any budget, Karpenter would use its default of 10%.
    if exported.is_empty() {
        exported.push(json!({ "nodes": "100%" }));
    }
    Some(Value::Array(exported))
}

fn export_budget(
    body: &mut HclBody,
    path: &str,
    losses: &mut DroppedFields,
) -> Result<Map<String, Value>, BudgetError> {
    let mut object = Map::new();
    let nodes = body.take_value("nodes").unwrap_or_default();
    if body.take_argument("rate").is_some() {
        if nodes == "100%" {
            return Err(BudgetError("Karpenter budgets limit concurrent disruptions, not a rate"));
        }
        losses.add(format!("{path}.rate"), "Karpenter budgets have no rate");
    }
    object.insert("nodes".to_owned(), nodes);
    if let Some(Value::Array(mut reasons)) = body.take_value("reasons") {
        let before = reasons.len();
        reasons.retain(|reason| reason != "expired");
        if reasons.is_empty() {
            return Err(BudgetError(EXPIRATION));
        }
        if reasons.len() < before {
            losses.add(format!("{path}.reasons: expired"), EXPIRATION);
        }
        body.set("reasons", reasons);
    }
    if body.take_argument("timezone").is_some() {
        return Err(BudgetError("Karpenter schedules are in UTC"));
    }
    if body.items.iter().any(|item| match item {
        HclItem::Argument("schedule", HclValue::Value(Value::String(expression))) => {
            !expression.starts_with('@')
                && expression.split_whitespace().nth(4).is_some_and(|day| day.contains('7'))
        }
        _ => false,
    }) {
        return Err(BudgetError("Karpenter schedules have no day 7; write 0 for Sunday"));
    }
    let duration = body.take_value("duration");
    if duration.as_ref().and_then(Value::as_str).is_some_and(|text| text.ends_with('s')) {
        return Err(BudgetError("Karpenter budget durations are hours and minutes"));
    }
    body.set_some("duration", duration);
    field_mapping::export_fields(super::field_tables::BUDGET, body, path, &mut object, losses);
    Ok(object)
}

fn export_node_class(class: &NodeClass, cluster: &Cluster) -> ExportedDocument {
    let name = class.name.as_str();
    let path = format!("node_class.{name}");
    let mut losses = DroppedFields::default();
    let tags = cluster.tags_of(Some(&class.name));
    let mut body = to_hcl::node_class::node_class_body(class, &tags);
    let mut spec = Map::new();
    field_mapping::export_fields(NODE_CLASS, &mut body, &path, &mut spec, &mut losses);
    if body.take_argument("efa").is_some() {
        spec.insert("networkInterfaces".to_owned(), json!([]));
    }
    if let Some(mut block) = body.take_blocks("kubelet").pop() {
        let mut kubelet = Map::new();
        let kubelet_path = format!("{path}.kubelet");
        let inner = &mut block.body;
        let extra = inner.take_value("extra");
        field_mapping::export_fields(KUBELET, inner, &kubelet_path, &mut kubelet, &mut losses);
        if let Some(Value::Object(extra)) = extra {
            for name in extra.keys() {
                let why = "EC2NodeClass has no such field before Karpenter 1.15; user data can \
                           set it";
                losses.add(format!("{kubelet_path}.extra.{name}"), why);
            }
        }
        if !kubelet.is_empty() {
            spec.insert("kubelet".to_owned(), Value::Object(kubelet));
        }
    }
    report_rest(&body, &path, &mut losses);
    for (field, block) in [
        ("amiSelectorTerms", "ami"),
        ("subnetSelectorTerms", "subnet"),
        ("securityGroupSelectorTerms", "security_group"),
    ] {
        if !spec.contains_key(field) {
            spec.insert(field.to_owned(), placeholders::placeholder_for(field));
            losses.add_missing(format!("{path}.{block}"), WITHOUT);
        }
    }
    if class.identity.is_none() {
        spec.insert("role".to_owned(), placeholders::placeholder_for("role"));
        losses.add_missing(format!("{path}.role"), WITHOUT);
    }
    // Without an alias, `amiFamily` is the only source of the family.
    let terms = spec.get("amiSelectorTerms").and_then(Value::as_array);
    if !terms.is_some_and(|all| all.iter().any(|term| term.get("alias").is_some())) {
        let family = spec.entry("amiFamily");
        family.or_insert_with(|| json!("Custom"));
    }
    ExportedDocument {
        object: karpenter_object(&format!("{EC2}/v1"), "EC2NodeClass", name, spec),
        losses: losses.all,
    }
}

fn export_overlay(overlay: &Overlay) -> ExportedDocument {
    let path = format!("overlay.{}", overlay.name);
    let mut losses = DroppedFields::default();
    let mut body = to_hcl::overlay_body(overlay);
    let mut spec = Map::new();
    spec.insert("requirements".to_owned(), requirements::export_requirements(&mut body));
    field_mapping::export_fields(OVERLAY, &mut body, &path, &mut spec, &mut losses);
    report_rest(&body, &path, &mut losses);
    ExportedDocument {
        object: karpenter_object("karpenter.sh/v1alpha1", "NodeOverlay", &overlay.name, spec),
        losses: losses.all,
    }
}

/// Reports the dropped settings of clusters and of the scheduler, except the connection to the
/// cluster.
fn dropped_settings(cluster: &Cluster, fleet: &FleetLimits) -> Vec<DroppedField> {
    const SHARED: &str = "Karpenter manages one cluster and has only pool settings";
    let mut losses = DroppedFields::default();
    drop_cluster_settings(cluster, &mut losses);
    drop_scheduler_settings(cluster, &mut losses);
    let limited = to_hcl::limits_value(&fleet.limits).is_some();
    for (is_set, path) in [(limited, "fleet.limits"), (!fleet.budgets.is_empty(), "fleet.budget")] {
        if is_set {
            losses.add(path, SHARED);
        }
    }
    losses.all
}

const NONE: &str = "Karpenter has no such setting";

fn drop_cluster_settings(cluster: &Cluster, losses: &mut DroppedFields) {
    let disruption = &cluster.disruption;
    let mut add = |is_set: bool, path: &str, why: &str| {
        if is_set {
            losses.add(format!("cluster.{}.{path}", cluster.name.as_str()), why);
        }
    };
    let limited = to_hcl::limits_value(&cluster.limits).is_some();
    add(limited, "limits", "Karpenter has limits of pools only");
    let budgeted = !disruption.budgets.is_empty();
    add(budgeted, "disruption.budget", "Karpenter has budgets of pools only");
    add(!disruption.windows.is_empty(), "disruption.window", NONE);
    let cools_down = disruption.cool_down != CoolDown::default();
    add(cools_down, "disruption.cool_down", NONE);
    add(cluster.binding == Binding::Early, "binding", NONE);
    let guarded = cluster.safeguards != Safeguards::default();
    add(guarded, "what brakes it", NONE);
}

fn drop_scheduler_settings(cluster: &Cluster, losses: &mut DroppedFields) {
    let (scheduling, batching) = (&cluster.scheduling, cluster.batching);
    let (defaults, default_batching) = (Scheduling::default(), Batching::default());
    let mut add = |is_set: bool, path: &str, why: &str| {
        if is_set {
            losses.add(format!("scheduler.{path}"), why);
        }
    };
    let changed = batching.idle != default_batching.idle;
    add(changed, "batch_idle", "setting BATCH_IDLE_DURATION in Karpenter");
    let changed = batching.max != default_batching.max;
    add(changed, "batch_max", "setting BATCH_MAX_DURATION in Karpenter");
    let changed = scheduling.preferences != defaults.preferences;
    add(changed, "preference_policy", "setting PREFERENCE_POLICY in Karpenter");
    let changed = scheduling.min_values != defaults.min_values;
    add(changed, "min_values_policy", "setting MIN_VALUES_POLICY in Karpenter");
    let changed = scheduling.node_overhead_price != defaults.node_overhead_price;
    add(changed, "node_overhead_price", NONE);
    add(scheduling.priority_cutoff.is_some(), "priority_cutoff", NONE);
    add(!scheduling.default_spread.is_empty(), "default_spread", NONE);
    let changed = scheduling.schedulers != defaults.schedulers;
    add(changed, "schedulers", NONE);
}
