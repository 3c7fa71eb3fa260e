//! Converts Karpenter objects to HCL, and reports dropped fields.
//!
//! ```text
//! YAML ─ manifests ─▶ objects ─ v1_conversion, provisioner, kubelet ─▶ objects of v1
//!      ─ pool, node_class, overlay, buffer ─▶ blocks ─ validate ─▶ HCL
//! ```

// Older API versions as v1.
mod v1_conversion;
// Provisioners as v1 NodePools.
mod provisioner;
// NodePools.
mod pool;
// Kubelet settings of older NodePools.
mod kubelet;
// EC2NodeClasses.
mod node_class;
// NodeOverlays.
mod overlay;
// CapacityBuffers and PodTemplates.
mod buffer;
// Validation of the imported configuration.
mod validate;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use thiserror::Error;

use crate::config::SourceFile;
use crate::config::format::format;
use crate::migrate::dropped::{DroppedField, DroppedFields};
use crate::migrate::field_mapping::take_field;
use crate::migrate::hcl::{HclBlock, HclBody, HclItem, PrintedHcl};
use crate::migrate::manifests::{DocumentError, Manifest, read_manifests};
use crate::text::sanitize::replace_unsafe;

/// The options of an import.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// The clusters of the imported pools, as names or patterns with `*`. All clusters if empty.
    pub clusters: Vec<String>,
}

/// Why an import fails.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ImportError {
    /// The input has no objects.
    #[error(transparent)]
    Documents(#[from] DocumentError),
    /// The input has no Karpenter objects.
    #[error("no Karpenter object found; the input has {}", other_kinds(.skipped))]
    Nothing {
        /// The kinds of the other objects.
        skipped: Vec<String>,
    },
    /// Two objects become blocks with the same label.
    #[error("cannot import {one} and {other}: both become {block}; rename one of them")]
    Twice {
        /// The first object.
        one: String,
        /// The second object.
        other: String,
        /// The block.
        block: String,
    },
    /// An object has no name.
    #[error("cannot import a {kind} of {file}: it has no name")]
    Nameless {
        /// Its kind.
        kind: String,
        /// Its file.
        file: String,
    },
    /// The result is not a valid configuration, and the error belongs to no object.
    #[error("the imported configuration is invalid: {0}")]
    Unsound(String),
}

fn other_kinds(skipped: &[String]) -> String {
    match skipped {
        [] => "none".to_owned(),
        kinds => format!("only {}", kinds.join(", ")),
    }
}

/// The HCL of all blocks of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HclFile {
    /// The name of its file.
    pub file: &'static str,
    /// The HCL.
    pub text: String,
}

/// The result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// The HCL, by type of block.
    pub parts: Vec<HclFile>,
    /// The dropped fields.
    pub losses: Vec<DroppedField>,
    /// Kinds that are not imported, with the number of their objects.
    pub skipped: Vec<(String, usize)>,
    /// Notes on settings that need no argument, with the reason.
    pub notes: Vec<String>,
}

/// An example cluster block, as a comment.
pub const CLUSTER_EXAMPLE: &str = "\
# An example of a cluster for these blocks. All arguments: docs/CONFIGURATION.md.
#
# outrigger { installation = \"example\" }
#
# cluster \"prod\" {
#   region = \"eu-central-1\"
#   mode   = \"observe\" # set \"manage\" to take over: docs/MIGRATION.md
#   eks {}
#   interruption { queue = \"outrigger\" }
# }
";

impl Imported {
    /// Returns all HCL, with an example cluster if no cluster was imported.
    pub fn text(&self) -> String {
        let example = (!self.has_cluster()).then_some(CLUSTER_EXAMPLE);
        let parts = self.parts.iter().map(|part| part.text.as_str());
        let all: Vec<&str> = example.into_iter().chain(parts).collect();
        all.join("\n")
    }

    /// Returns whether a cluster was imported.
    pub fn has_cluster(&self) -> bool {
        self.parts.iter().any(|part| part.file == CLUSTERS)
    }
}

/// An object, converted to `v1`.
#[derive(Clone, Debug, Default)]
struct Object {
    /// The name of the object in messages, such as `NodePool/general`.
    of: String,
    name: String,
    namespace: String,
    spec: Map<String, Value>,
    /// Comments for the block.
    about: Vec<String>,
    /// The fields that were dropped in the conversion to `v1`.
    lost: Vec<DroppedField>,
}

/// All objects, by the blocks that they become.
#[derive(Debug, Default)]
struct Objects {
    pools: Vec<Object>,
    classes: Vec<Object>,
    overlays: Vec<Object>,
    buffers: Vec<Object>,
    /// PodTemplates, for buffers.
    templates: Vec<Object>,
    /// Kubelet settings of pools of earlier versions, by pool name.
    kubelets: BTreeMap<String, Value>,
    skipped: BTreeMap<String, usize>,
    /// The dropped fields of objects that become no block.
    lost: Vec<DroppedField>,
    notes: Vec<String>,
}

/// A block with its dropped fields.
#[derive(Debug)]
pub(crate) struct ConvertedBlock {
    pub(crate) of: String,
    pub(crate) block: HclBlock,
    pub(crate) losses: Vec<DroppedField>,
    /// Whether the block is written as a comment.
    pub(crate) left_out: bool,
    /// How dropped items of the block are named in messages.
    pub(crate) words: ItemNoun,
}

/// How a dropped item of a block is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemNoun {
    /// Named by the field of the Karpenter object.
    Karpenters,
    /// Named by the argument.
    Ours,
}

impl ConvertedBlock {
    /// Creates a block of the object that has the dropped fields.
    pub(crate) fn new(
        kind: &'static str,
        label: Option<String>,
        body: HclBody,
        losses: DroppedFields,
        words: ItemNoun,
    ) -> Self {
        Self {
            of: losses.of,
            block: HclBlock { kind, label, body },
            losses: losses.all,
            left_out: false,
            words,
        }
    }

    /// Turns the block into a comment.
    pub(crate) fn comment_out(&mut self, why: impl Into<String>) {
        self.left_out = true;
        let path = match self.words {
            ItemNoun::Karpenters => "spec".to_owned(),
            ItemNoun::Ours => format!("the whole {}", self.block.kind),
        };
        self.losses.push(DroppedField::new(self.of.as_str(), path, why));
    }
}

/// Converts objects to HCL.
///
/// # Errors
///
/// Fails if the input has no Karpenter objects, or if two objects become the same block.
pub fn import(files: &[SourceFile], options: &ImportOptions) -> Result<Imported, ImportError> {
    let mut objects = Objects::default();
    let documents = read_manifests(files)?;
    for document in documents.objects {
        collect_document(document, &mut objects)?;
    }
    if documents.strange > 0 {
        let kind = "document without a kind".to_owned();
        objects.skipped.insert(kind, documents.strange);
    }
    let all = [&objects.pools, &objects.classes, &objects.overlays, &objects.buffers];
    if all.iter().all(|list| list.is_empty()) && objects.lost.is_empty() {
        let skipped = objects.skipped.into_keys().collect();
        return Err(ImportError::Nothing { skipped });
    }
    pool::add_missing_classes(&mut objects);
    kubelet::move_to_classes(&mut objects);
    let taints = pool::pool_tolerations(&objects.pools);
    let clusters = &options.clusters;
    let mut built: Vec<ConvertedBlock> = Vec::new();
    for class in objects.classes {
        built.push(node_class::build_node_class(class, clusters));
    }
    for pool in objects.pools {
        built.push(pool::build_pool(pool, clusters));
    }
    for overlay in objects.overlays {
        built.push(overlay::build_overlay(overlay, clusters));
    }
    for buffer in objects.buffers {
        let templates = &objects.templates;
        built.push(buffer::build_buffer(buffer, templates, &taints, clusters));
    }
    let mut imported = finish_import(built, clusters, objects.lost)?;
    imported.skipped = objects.skipped.into_iter().collect();
    imported.notes = objects.notes;
    Ok(imported)
}

/// Drops the invalid parts of the blocks and prints the rest. `losses` are the dropped fields of
/// objects that became no block.
pub(crate) fn finish_import(
    mut built: Vec<ConvertedBlock>,
    clusters: &[String],
    mut losses: Vec<DroppedField>,
) -> Result<Imported, ImportError> {
    check_labels(&built)?;
    validate::drop_invalid_parts(&mut built, clusters)?;
    // Copies of a class repeat its dropped fields, which are reported only once.
    let mut seen: BTreeSet<DroppedField> = losses.iter().cloned().collect();
    for loss in built.iter().flat_map(|converted| &converted.losses) {
        if seen.insert(loss.clone()) {
            losses.push(loss.clone());
        }
    }
    Ok(Imported { parts: hcl_files(built)?, losses, ..Imported::default() })
}

/// Converts an object to `v1` and stores it by kind.
fn collect_document(document: Manifest, objects: &mut Objects) -> Result<(), ImportError> {
    let place = (document.group.as_str(), document.kind.as_str());
    let known = matches!(
        place,
        ("karpenter.sh", "NodePool" | "NodeOverlay" | "Provisioner")
            | ("karpenter.k8s.aws", "EC2NodeClass" | "AWSNodeTemplate")
            | ("autoscaling.x-k8s.io", "CapacityBuffer")
            | ("", "PodTemplate")
    );
    if !known {
        let kind = match document.group.as_str() {
            "" => document.kind,
            group => format!("{}.{group}", document.kind),
        };
        *objects.skipped.entry(kind).or_default() += 1;
        return Ok(());
    }
    if document.name.is_empty() {
        return Err(ImportError::Nameless { kind: document.kind, file: document.file });
    }
    let (kind, version) = (document.kind.clone(), document.version.clone());
    let mut object = v1_object(document, &mut objects.notes);
    match (kind.as_str(), version.as_str()) {
        ("NodePool", "v1") => objects.pools.push(object),
        ("NodePool", "v1beta1") => v1_conversion::convert_pool(object, objects),
        ("Provisioner", "v1alpha3" | "v1alpha4" | "v1alpha5") => {
            provisioner::convert_provisioner(object, &version, objects);
        }
        ("EC2NodeClass", "v1") => objects.classes.push(object),
        ("EC2NodeClass", "v1beta1") => {
            objects.classes.push(v1_conversion::convert_node_class(object))
        }
        ("AWSNodeTemplate", "v1alpha1") => {
            objects.classes.push(v1_conversion::convert_node_template(object))
        }
        ("NodeOverlay", "v1alpha1") => objects.overlays.push(object),
        ("CapacityBuffer", "v1alpha1" | "v1beta1") => objects.buffers.push(object),
        ("PodTemplate", _) => {
            // A PodTemplate becomes part of its buffers.
            objects.lost.append(&mut object.lost);
            objects.templates.push(object);
        }
        _ => {
            let why = format!("the version {version} of {kind} is not supported");
            objects.lost.push(DroppedField::new(object.of, "spec", why));
        }
    }
    Ok(())
}

/// The annotation that describes an object.
const DESCRIPTION: &str = "kubernetes.io/description";
/// Metadata that users write.
const NOTED: [&str; 2] = ["labels", "annotations"];
/// Maximum number of keys listed by name.
const KEYS: usize = 5;
/// Metadata that the API server maintains. Source: Kubernetes API, ObjectMeta.
const KEPT: [&str; 11] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];
/// The annotation in which the conversion from `v1beta1` keeps fields that `v1` does not have.
const CONVERTED: &str = "compatibility.karpenter";

/// Returns the fields of an object. Drops a value that is not an object.
fn object_fields(
    value: Option<Value>,
    path: &str,
    losses: &mut DroppedFields,
) -> Map<String, Value> {
    match value {
        Some(Value::Object(fields)) => return fields,
        None | Some(Value::Null) => {}
        Some(_) => losses.add(path, "the value is not an object"),
    }
    Map::new()
}

fn v1_object(document: Manifest, notes: &mut Vec<String>) -> Object {
    let source = format!("{}/{}", document.kind, document.name);
    let mut losses = DroppedFields::for_object(source.clone());
    let mut rest = document.rest;
    // A PodTemplate has `template` instead of `spec`.
    let name = match document.kind.as_str() {
        "PodTemplate" => "template",
        _ => "spec",
    };
    let spec = object_fields(take_field(&mut rest, name), name, &mut losses);
    for key in rest.keys() {
        losses.add(key.as_str(), "unknown field");
    }
    let about = describe_metadata(&source, document.metadata, &mut losses, notes);
    Object {
        of: source,
        name: document.name,
        namespace: match document.namespace.as_str() {
            "" => "default".to_owned(),
            _ => document.namespace,
        },
        spec,
        about,
        lost: losses.all,
    }
}

/// Returns the description in an object's metadata. Other metadata does not affect nodes. Metadata
/// that users and their tools have written is reported in a note.
fn describe_metadata(
    source: &str,
    metadata: Map<String, Value>,
    losses: &mut DroppedFields,
    notes: &mut Vec<String>,
) -> Vec<String> {
    let mut about = Vec::new();
    for (field, value) in metadata {
        let path = format!("metadata.{field}");
        let pairs = match value {
            Value::Object(pairs) if NOTED.contains(&&*field) => pairs,
            Value::Null => continue,
            _ if KEPT.contains(&&*field) => continue,
            _ if NOTED.contains(&&*field) => {
                losses.add(path, "the value is not a map");
                continue;
            }
            _ => {
                losses.add(path, "unknown field");
                continue;
            }
        };
        let mut others = Vec::new();
        for (key, value) in pairs {
            match value {
                Value::String(text) if field == "annotations" && key == DESCRIPTION => {
                    about.push(text);
                }
                _ if key.starts_with(CONVERTED) => {
                    let why = "it holds fields that were lost when Karpenter converted the object";
                    losses.add(format!("{path}.{key}"), why);
                }
                _ if is_maintained_annotation(&key) => {}
                _ => others.push(key),
            }
        }
        let count = others.len();
        if count > 0 {
            others.truncate(KEYS);
            let ending = match count.saturating_sub(KEYS) {
                0 => String::new(),
                omitted => format!(" and {omitted} more"),
            };
            let keys = others.join(", ");
            notes.push(format!("{source}: {path} is not imported: {keys}{ending}"));
        }
    }
    about
}

/// Returns whether kubectl or Karpenter maintains this annotation.
fn is_maintained_annotation(key: &str) -> bool {
    let karpenters = key.starts_with("karpenter.sh/") || key.starts_with("karpenter.k8s.aws/");
    key == "kubectl.kubernetes.io/last-applied-configuration"
        || (karpenters && (key.contains("-hash") || key.ends_with("/stored-version-migrated")))
}

impl Object {
    /// Returns the spec, the body, and the list of its dropped fields.
    fn start_block(&mut self, clusters: &[String]) -> (Map<String, Value>, HclBody, DroppedFields) {
        let mut body = HclBody::default();
        body.set_unless_empty("clusters", clusters.to_vec());
        let mut losses = DroppedFields::for_object(self.of.clone());
        losses.all = std::mem::take(&mut self.lost);
        (std::mem::take(&mut self.spec), body, losses)
    }

    fn into_block(
        self,
        kind: &'static str,
        body: HclBody,
        losses: DroppedFields,
    ) -> ConvertedBlock {
        let mut commented = HclBody::default();
        for line in &self.about {
            commented.add_comment(line.as_str());
        }
        commented.items.extend(body.items);
        let words = ItemNoun::Karpenters;
        ConvertedBlock::new(kind, Some(self.name), commented, losses, words)
    }
}

/// Finds two objects with the same label.
fn check_labels(built: &[ConvertedBlock]) -> Result<(), ImportError> {
    let mut seen: BTreeMap<(&str, &str), &ConvertedBlock> = BTreeMap::new();
    for converted in built {
        let label = converted.block.label.as_deref().unwrap_or_default();
        if let Some(other) = seen.insert((converted.block.kind, label), converted) {
            return Err(ImportError::Twice {
                one: other.of.clone(),
                other: converted.of.clone(),
                block: format!("{} {label:?}", converted.block.kind),
            });
        }
    }
    Ok(())
}

/// The file of the clusters.
pub const CLUSTERS: &str = "clusters.hcl";

/// Types of blocks with their files.
const FILES: [(&str, &str); 6] = [
    ("cluster", CLUSTERS),
    ("scheduler", "scheduler.hcl"),
    ("node_class", "node_classes.hcl"),
    ("pool", "pools.hcl"),
    ("overlay", "overlays.hcl"),
    ("buffer", "buffers.hcl"),
];

fn hcl_files(built: Vec<ConvertedBlock>) -> Result<Vec<HclFile>, ImportError> {
    let mut parts = Vec::new();
    for (kind, file) in FILES {
        let mut body = HclBody::default();
        for converted in built.iter().filter(|converted| converted.block.kind == kind) {
            write_block(converted, &mut body);
        }
        if body.is_empty() {
            continue;
        }
        let text = PrintedHcl::print_body(&body).text;
        let text = format(&SourceFile::new(file, text)).map_err(|problems| {
            let first = problems.first().map(|problem| problem.detail.clone());
            ImportError::Unsound(first.unwrap_or_default())
        })?;
        parts.push(HclFile { file, text });
    }
    Ok(parts)
}

/// Adds a block with comments on its dropped fields, or the block as a comment.
fn write_block(converted: &ConvertedBlock, body: &mut HclBody) {
    let mut block = converted.block.clone();
    let mut notes = Vec::new();
    for (index, loss) in converted.losses.iter().enumerate() {
        if !converted.losses[..index].contains(loss) {
            let loss = DroppedField { of: String::new(), ..loss.clone() };
            notes.push(HclItem::Comment(replace_unsafe(&format!("import: {loss}")).collect()));
        }
    }
    let items = &mut block.body.items;
    let comments = items.iter().take_while(|item| matches!(item, HclItem::Comment(_))).count();
    items.splice(comments..comments, notes);
    let item = HclItem::Block(block);
    if !converted.left_out {
        body.items.push(item);
        return;
    }
    let items = vec![item];
    body.add_comment(PrintedHcl::print_body(&HclBody { items }).text);
}
