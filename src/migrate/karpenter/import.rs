//! From objects of Karpenter's to HCL, and what could not be carried over.
//! It must not know where the texts come from, nor where the HCL goes.
//!
//! ```text
//! YAML ─ documents ─▶ objects ─ earlier, provisioner, kubelet ─▶ objects of v1
//!      ─ pool, node_class, overlay, buffer ─▶ blocks ─ sound ─▶ HCL
//! ```

mod v1_conversion;
mod provisioner;
mod pool;
mod kubelet;
mod node_class;
mod overlay;
mod buffer;
mod validate;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use thiserror::Error;

use crate::config::SourceFile;
use crate::config::format::format;
use crate::migrate::dropped::{DroppedField, DroppedFields};
use crate::migrate::field_mapping::take;
use crate::migrate::hcl::{HclBlock, HclBody, HclItem, PrintedHcl};
use crate::migrate::manifests::{DocumentError, Manifest, read};
use crate::text::sanitize::disturbs;

/// What is imported is for these clusters.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Names, or patterns with `*`; all clusters if empty.
    pub clusters: Vec<String>,
}

/// Why nothing can be imported.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ImportError {
    /// The texts hold no objects.
    #[error(transparent)]
    Documents(#[from] DocumentError),
    /// There is nothing of Karpenter's.
    #[error("find an object of Karpenter's: there is {}", others(.skipped))]
    Nothing {
        /// The kinds there are instead.
        skipped: Vec<String>,
    },
    /// Two objects become blocks of one label.
    #[error("import {one} and {other}: both become {block}; rename one of them")]
    Twice {
        /// The first.
        one: String,
        /// The second.
        other: String,
        /// The block.
        block: String,
    },
    /// An object has no name.
    #[error("import a {kind} of {file}: it has no name")]
    Nameless {
        /// Its kind.
        kind: String,
        /// Its file.
        file: String,
    },
    /// What came of it is no configuration, and no object is to blame.
    #[error("make a configuration of it: {0}")]
    Unsound(String),
}

fn others(skipped: &[String]) -> String {
    match skipped {
        [] => "none".to_owned(),
        kinds => format!("none, only {}", kinds.join(", ")),
    }
}

/// HCL of one kind of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HclFile {
    /// Name of the file for it.
    pub file: &'static str,
    /// The HCL.
    pub text: String,
}

/// What was imported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// The HCL, kind by kind.
    pub parts: Vec<HclFile>,
    /// What could not be carried over.
    pub losses: Vec<DroppedField>,
    /// Kinds that are nothing of what is imported, and how many objects of them there are.
    pub skipped: Vec<(String, usize)>,
    /// What says nothing that there would be an argument for, and why.
    pub notes: Vec<String>,
}

/// A cluster to start from, as a comment.
pub const CLUSTER_EXAMPLE: &str = "\
# The clusters these blocks are for. Every argument: docs/CONFIGURATION.md.
#
# outrigger { installation = \"example\" }
#
# cluster \"prod\" {
#   region = \"eu-central-1\"
#   mode   = \"observe\" # when \"manage\" is due: docs/MIGRATION.md
#   eks {}
#   interruption { queue = \"outrigger\" }
# }
";

impl Imported {
    /// All of it as one text, with a cluster to start from where it has none of its own.
    pub fn text(&self) -> String {
        let example = (!self.has_cluster()).then_some(CLUSTER_EXAMPLE);
        let parts = self.parts.iter().map(|part| part.text.as_str());
        let all: Vec<&str> = example.into_iter().chain(parts).collect();
        all.join("\n")
    }

    /// Whether a cluster was imported, too.
    pub fn has_cluster(&self) -> bool {
        self.parts.iter().any(|part| part.file == CLUSTERS)
    }
}

/// An object of `v1`, whatever it was before.
#[derive(Clone, Debug)]
struct Object {
    /// What it is called in messages, such as `NodePool/general`.
    of: String,
    name: String,
    namespace: String,
    spec: Map<String, Value>,
    /// What its author says of it.
    about: Vec<String>,
    /// What was lost on the way to `v1`.
    lost: Vec<DroppedField>,
}

/// All objects by what they become.
#[derive(Debug, Default)]
struct Objects {
    pools: Vec<Object>,
    classes: Vec<Object>,
    overlays: Vec<Object>,
    buffers: Vec<Object>,
    /// What pods are like, for buffers.
    templates: Vec<Object>,
    /// Settings of kubelets that older pools have, by the pool's name.
    kubelets: BTreeMap<String, Value>,
    skipped: BTreeMap<String, usize>,
    /// What is lost of objects that become no block of their own.
    lost: Vec<DroppedField>,
    notes: Vec<String>,
}

/// A block, and what was lost on the way to it.
#[derive(Debug)]
pub(crate) struct ConvertedBlock {
    pub(crate) of: String,
    pub(crate) block: HclBlock,
    pub(crate) losses: Vec<DroppedField>,
    /// Whether it is no block but a comment.
    pub(crate) left_out: bool,
    /// In whose words it is told what is left out of it.
    pub(crate) words: ItemNoun,
}

/// How what a block has is called where it is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemNoun {
    /// As the field of Karpenter's object that it comes from.
    Karpenters,
    /// As the argument that it is.
    Ours,
}

impl ConvertedBlock {
    /// Makes it a comment.
    pub(crate) fn leave_out(&mut self, why: impl Into<String>) {
        self.left_out = true;
        self.losses.push(DroppedField {
            of: self.of.clone(),
            path: match self.words {
                ItemNoun::Karpenters => "spec".to_owned(),
                ItemNoun::Ours => format!("the whole {}", self.block.kind),
            },
            why: why.into(),
            missing: false,
        });
    }
}

/// Makes HCL of the objects in some texts.
///
/// # Errors
///
/// Texts that hold no objects of Karpenter's, or two that become one block.
pub fn import(files: &[SourceFile], options: &ImportOptions) -> Result<Imported, ImportError> {
    let mut objects = Objects::default();
    let documents = read(files)?;
    for document in documents.objects {
        sort(document, &mut objects)?;
    }
    if documents.strange > 0 {
        let kind = "document without a kind".to_owned();
        objects.skipped.insert(kind, documents.strange);
    }
    let all = [
        &objects.pools,
        &objects.classes,
        &objects.overlays,
        &objects.buffers,
    ];
    if all.iter().all(|own| own.is_empty()) && objects.lost.is_empty() {
        let skipped = objects.skipped.into_keys().collect();
        return Err(ImportError::Nothing { skipped });
    }
    pool::add_missing_classes(&mut objects);
    kubelet::settle(&mut objects);
    let taints = pool::taints(&objects.pools);
    let clusters = &options.clusters;
    let mut built: Vec<ConvertedBlock> = Vec::new();
    built.extend(
        objects
            .classes
            .into_iter()
            .map(|own| node_class::build(own, clusters)),
    );
    built.extend(
        objects
            .pools
            .into_iter()
            .map(|own| pool::build(own, clusters)),
    );
    built.extend(
        objects
            .overlays
            .into_iter()
            .map(|own| overlay::build(own, clusters)),
    );
    let buffers = objects.buffers.into_iter();
    let templates = &objects.templates;
    built.extend(buffers.map(|own| buffer::build(own, templates, &taints, clusters)));
    let mut imported = finish(built, clusters, objects.lost)?;
    imported.skipped = objects.skipped.into_iter().collect();
    imported.notes = objects.notes;
    Ok(imported)
}

/// Leaves out of some blocks what is no configuration, and writes the rest. `losses` are those of
/// what became no block.
pub(crate) fn finish(
    mut built: Vec<ConvertedBlock>,
    clusters: &[String],
    mut losses: Vec<DroppedField>,
) -> Result<Imported, ImportError> {
    check_labels(&built)?;
    validate::check(&mut built, clusters)?;
    // What is lost of a class is lost of its copies, too.
    let mut told: BTreeSet<DroppedField> = losses.iter().cloned().collect();
    for loss in built.iter().flat_map(|own| &own.losses) {
        if told.insert(loss.clone()) {
            losses.push(loss.clone());
        }
    }
    Ok(Imported {
        parts: parts(built)?,
        losses,
        ..Imported::default()
    })
}

/// Puts an object where it belongs, as one of `v1`.
fn sort(document: Manifest, all: &mut Objects) -> Result<(), ImportError> {
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
        *all.skipped.entry(kind).or_default() += 1;
        return Ok(());
    }
    if document.name.is_empty() {
        return Err(ImportError::Nameless {
            kind: document.kind,
            file: document.file,
        });
    }
    let (kind, version) = (document.kind.clone(), document.version.clone());
    let mut own = object(document, &mut all.notes);
    match (kind.as_str(), version.as_str()) {
        ("NodePool", "v1") => all.pools.push(own),
        ("NodePool", "v1beta1") => v1_conversion::pool(own, all),
        ("Provisioner", "v1alpha3" | "v1alpha4" | "v1alpha5") => {
            provisioner::convert(own, &version, all);
        }
        ("EC2NodeClass", "v1") => all.classes.push(own),
        ("EC2NodeClass", "v1beta1") => all.classes.push(v1_conversion::node_class(own)),
        ("AWSNodeTemplate", "v1alpha1") => all.classes.push(v1_conversion::template(own)),
        ("NodeOverlay", "v1alpha1") => all.overlays.push(own),
        ("CapacityBuffer", "v1alpha1" | "v1beta1") => all.buffers.push(own),
        ("PodTemplate", _) => {
            // It becomes a part of other blocks.
            all.lost.append(&mut own.lost);
            all.templates.push(own);
        }
        _ => {
            let mut losses = DroppedFields::of(own.of);
            losses.add(
                "spec",
                format!("{version} of {kind} is no version that is known"),
            );
            all.lost.extend(losses.all);
        }
    }
    Ok(())
}

/// What an author may say of an object.
const DESCRIPTION: &str = "kubernetes.io/description";
/// Where people write what they like.
const NOTED: [&str; 2] = ["labels", "annotations"];
/// Of so many keys is told by name.
const KEYS: usize = 5;
/// What the API server keeps of an object. Source: Kubernetes API, ObjectMeta.
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
/// Where a conversion from `v1beta1` keeps what `v1` has no field for.
const CONVERTED: &str = "compatibility.karpenter";

/// What an object's metadata comes to.
#[derive(Default)]
struct Described {
    /// What its author says.
    about: Vec<String>,
    /// What nothing was made of.
    notes: Vec<String>,
}

/// What an object has; what is something else is lost.
fn fields(own: Option<Value>, path: &str, losses: &mut DroppedFields) -> Map<String, Value> {
    match own {
        Some(Value::Object(own)) => return own,
        None | Some(Value::Null) => {}
        Some(_) => losses.add(path, "it is no object"),
    }
    Map::new()
}

fn object(document: Manifest, notes: &mut Vec<String>) -> Object {
    let of = format!("{}/{}", document.kind, document.name);
    let mut losses = DroppedFields::of(of.clone());
    let mut rest = document.rest;
    // A template of pods has its own word for it.
    let name = match document.kind.as_str() {
        "PodTemplate" => "template",
        _ => "spec",
    };
    let spec = fields(take(&mut rest, name), name, &mut losses);
    for key in rest.keys() {
        losses.add(key.as_str(), "an unknown field");
    }
    let described = described(&of, document.metadata, &mut losses);
    notes.extend(described.notes);
    Object {
        of,
        name: document.name,
        namespace: match document.namespace.as_str() {
            "" => "default".to_owned(),
            _ => document.namespace,
        },
        spec,
        about: described.about,
        lost: losses.all,
    }
}

/// What an author says of an object in its metadata. Nothing else there is of any use to nodes, and
/// what people and their tools have written is noted.
fn described(of: &str, metadata: Map<String, Value>, losses: &mut DroppedFields) -> Described {
    let mut own = Described::default();
    for (field, value) in metadata {
        let path = format!("metadata.{field}");
        let pairs = match value {
            Value::Object(pairs) if NOTED.contains(&&*field) => pairs,
            Value::Null => continue,
            _ if KEPT.contains(&&*field) => continue,
            _ if NOTED.contains(&&*field) => {
                losses.add(path, "it is no map");
                continue;
            }
            _ => {
                losses.add(path, "an unknown field");
                continue;
            }
        };
        let mut others = Vec::new();
        for (key, value) in pairs {
            match value {
                Value::String(text) if field == "annotations" && key == DESCRIPTION => {
                    own.about.push(text);
                }
                _ if key.starts_with(CONVERTED) => {
                    let why = "it stands for what was lost when the object was converted";
                    losses.add(format!("{path}.{key}"), why);
                }
                _ if is_book(&key) => {}
                _ => others.push(key),
            }
        }
        let count = others.len();
        if count > 0 {
            others.truncate(KEYS);
            let more = count.saturating_sub(KEYS);
            let more = match more {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let keys = others.join(", ");
            let note = format!("{of}: nothing is made of {path}: {keys}{more}");
            own.notes.push(note);
        }
    }
    own
}

/// Whether kubectl or Karpenter keeps this annotation for itself.
fn is_book(key: &str) -> bool {
    let karpenters = key.starts_with("karpenter.sh/") || key.starts_with("karpenter.k8s.aws/");
    key == "kubectl.kubernetes.io/last-applied-configuration"
        || (karpenters && (key.contains("-hash") || key.ends_with("/stored-version-migrated")))
}

impl Object {
    /// The body to fill, and where its losses go.
    fn start(&mut self, clusters: &[String]) -> (HclBody, DroppedFields) {
        let mut body = HclBody::default();
        if !clusters.is_empty() {
            body.set("clusters", clusters.to_vec());
        }
        let mut losses = DroppedFields::of(self.of.clone());
        losses.all = std::mem::take(&mut self.lost);
        (body, losses)
    }

    fn built(self, kind: &'static str, body: HclBody, losses: DroppedFields) -> ConvertedBlock {
        let mut own = HclBody::default();
        for line in &self.about {
            own.comment(line.as_str());
        }
        own.items.extend(body.items);
        ConvertedBlock {
            of: self.of,
            block: HclBlock {
                kind,
                label: Some(self.name),
                body: own,
            },
            losses: losses.all,
            left_out: false,
            words: ItemNoun::Karpenters,
        }
    }
}

/// Two objects of one label.
fn check_labels(built: &[ConvertedBlock]) -> Result<(), ImportError> {
    let mut seen: BTreeMap<(&str, &str), &ConvertedBlock> = BTreeMap::new();
    for own in built {
        let label = own.block.label.as_deref().unwrap_or_default();
        if let Some(other) = seen.insert((own.block.kind, label), own) {
            return Err(ImportError::Twice {
                one: other.of.clone(),
                other: own.of.clone(),
                block: format!("{} {label:?}", own.block.kind),
            });
        }
    }
    Ok(())
}

/// The file for clusters.
pub const CLUSTERS: &str = "clusters.hcl";

/// Kinds of blocks with the file for them.
const FILES: [(&str, &str); 6] = [
    ("cluster", CLUSTERS),
    ("scheduler", "scheduler.hcl"),
    ("node_class", "node_classes.hcl"),
    ("pool", "pools.hcl"),
    ("overlay", "overlays.hcl"),
    ("buffer", "buffers.hcl"),
];

fn parts(built: Vec<ConvertedBlock>) -> Result<Vec<HclFile>, ImportError> {
    let mut parts = Vec::new();
    for (kind, file) in FILES {
        let mut body = HclBody::default();
        for own in built.iter().filter(|own| own.block.kind == kind) {
            show(own, &mut body);
        }
        if body.is_empty() {
            continue;
        }
        let text = PrintedHcl::of(&body).text;
        let text = format(&SourceFile::new(file, text)).map_err(|problems| {
            let first = problems.first().map(|own| own.detail.clone());
            ImportError::Unsound(first.unwrap_or_default())
        })?;
        parts.push(HclFile { file, text });
    }
    Ok(parts)
}

/// A block with what was lost on the way to it, or a comment in its place.
fn show(own: &ConvertedBlock, body: &mut HclBody) {
    let mut block = own.block.clone();
    let said = |at: usize| own.losses[..at].contains(&own.losses[at]);
    let told = (0..own.losses.len()).filter(|at| !said(*at));
    let notes = told.map(|at| {
        let loss = &own.losses[at];
        let own = DroppedField {
            of: String::new(),
            ..loss.clone()
        };
        HclItem::Comment(one_line(&format!("import: {own}")))
    });
    let at = block.body.items.iter();
    let at = at
        .take_while(|item| matches!(item, HclItem::Comment(_)))
        .count();
    block.body.items.splice(at..at, notes);
    let item = HclItem::Block(block);
    if !own.left_out {
        body.items.push(item);
        return;
    }
    let items = vec![item];
    body.comment(PrintedHcl::of(&HclBody { items }).text);
}

/// A text without ends of lines, and without what hides or turns the rest.
fn one_line(text: &str) -> String {
    let plain = |c: char| if disturbs(c) { ' ' } else { c };
    text.chars().map(plain).collect()
}
