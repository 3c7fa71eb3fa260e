//! Reads groups, launch templates and EKS node groups from the output of the AWS CLI.

use serde_json::{Map, Value};
use thiserror::Error;

use crate::config::SourceFile;
use crate::migrate::field_mapping::{scalar_text, take_field, take_list, text_or_empty};
use crate::migrate::manifests::{self, BYTES_MAX};

/// Maximum number of groups and of launch templates. An account has hundreds of them in a region.
const GROUPS_MAX: usize = 5000;

/// The keys of the objects in the output of each command.
const GROUPS: &str = "AutoScalingGroups";
const TEMPLATES: &str = "LaunchTemplateVersions";
const NODE_GROUP: &str = "nodegroup";

/// The reference to the newest version.
const LATEST: &str = "$Latest";

/// Prefixes of the autoscaler's tags, and of its tags about nodes.
pub(super) const AUTOSCALER: &str = "k8s.io/cluster-autoscaler/";
pub(super) const NODE_TEMPLATE: &str = "k8s.io/cluster-autoscaler/node-template/";

/// Why the groups of a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot read {file}: {why}")]
pub struct GroupsError {
    /// The file.
    pub file: String,
    /// The reason: the file is not JSON or YAML, has none of the lists, exceeds a limit, repeats a
    /// group of an earlier file, or has an element without a name.
    pub why: String,
}

/// An Auto Scaling group.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeGroup {
    pub(super) name: String,
    pub(super) fields: Map<String, Value>,
    /// Its tags that affect nodes or the autoscaler, in order.
    pub(super) tags: Vec<Tag>,
    /// Its EKS node group, if it is managed by EKS.
    pub(super) managed: Option<Map<String, Value>>,
}

/// A tag of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) key: String,
    pub(super) value: String,
    /// Whether the tag is propagated to instances.
    pub(super) is_launched: bool,
}

impl Tag {
    /// Creates a tag that is not propagated to instances.
    fn new(key: &str, value: &str) -> Self {
        Self { key: key.to_owned(), value: value.to_owned(), is_launched: false }
    }
}

/// A version of a launch template.
#[derive(Clone, Debug)]
pub(super) struct LaunchTemplateVersion {
    id: String,
    name: String,
    version: i64,
    is_default: bool,
    pub(super) data: Map<String, Value>,
}

/// The content of all files.
#[derive(Clone, Debug, Default)]
pub(super) struct AwsExport {
    pub(super) groups: Vec<NodeGroup>,
    pub(super) templates: Vec<LaunchTemplateVersion>,
}

impl NodeGroup {
    /// Returns the value of a tag.
    pub(super) fn tag_value(&self, key: &str) -> Option<&str> {
        let found = self.tags.iter().find(|tag| tag.key == key);
        found.map(|tag| tag.value.as_str())
    }

    /// Returns the node tags of this kind, each with the rest of its key.
    pub(super) fn node_tags(&self, kind: &str) -> impl Iterator<Item = (&str, &Tag)> {
        self.tags.iter().filter_map(move |tag| {
            let name = tag.key.strip_prefix(NODE_TEMPLATE)?.strip_prefix(kind)?;
            Some((name, tag))
        })
    }

    /// Removes and returns a field that is not empty.
    pub(super) fn take_field(&mut self, field: &str) -> Option<Value> {
        take_field(&mut self.fields, field)
    }

    /// Returns a field of the EKS node group.
    pub(super) fn managed_field(&self, field: &str) -> Option<&Value> {
        let found = self.managed.as_ref()?.get(field)?;
        (!found.is_null()).then_some(found)
    }
}

/// Reads all files.
pub(super) fn read_export(files: &[SourceFile]) -> Result<AwsExport, GroupsError> {
    let (mut export, mut managed, mut bytes) = (AwsExport::default(), Vec::new(), 0_usize);
    for SourceFile { name, text, .. } in files {
        bytes = bytes.saturating_add(text.len());
        let fault = |why: String| GroupsError { file: name.clone(), why };
        let too_much = || fault(format!("more than {BYTES_MAX} bytes or {GROUPS_MAX} groups"));
        if bytes > BYTES_MAX {
            return Err(too_much());
        }
        let answers = manifests::parse(text).map_err(|error| fault(error.to_string()))?;
        let mut is_known = false;
        for mut answer in answers.into_iter().filter(|answer| !answer.is_null()) {
            is_known |= collect_objects(&mut answer, name, &mut export, &mut managed)?;
        }
        if !is_known {
            return Err(fault(format!(
                "it has none of {GROUPS}, {TEMPLATES} and {NODE_GROUP}; give the output of aws \
                 autoscaling describe-auto-scaling-groups, aws ec2 \
                 describe-launch-template-versions or aws eks describe-nodegroup"
            )));
        }
        if export.groups.len() + export.templates.len() + managed.len() > GROUPS_MAX {
            return Err(too_much());
        }
    }
    for node_group in managed {
        join_node_group(node_group, &mut export.groups);
    }
    Ok(export)
}

/// Adds the objects of a file. Returns whether the file has any objects.
fn collect_objects(
    answer: &mut Value,
    file: &str,
    export: &mut AwsExport,
    managed: &mut Vec<Map<String, Value>>,
) -> Result<bool, GroupsError> {
    let Some(answer) = answer.as_object_mut() else {
        return Ok(false);
    };
    let lists = [take_field(answer, GROUPS), take_field(answer, TEMPLATES)];
    let is_known = lists.iter().any(Option::is_some);
    let [groups, templates] = lists.map(|list| match list {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    });

    for (index, item) in groups.into_iter().enumerate() {
        let group = parse_group(item)
            .ok_or_else(|| nameless_error(file, GROUPS, index, "AutoScalingGroupName"))?;
        if export.groups.iter().any(|other| other.name == group.name) {
            let name = group.name;
            return Err(GroupsError {
                file: file.to_owned(),
                why: format!("an earlier file describes the group {name}; give it once"),
            });
        }
        export.groups.push(group);
    }
    for (index, item) in templates.into_iter().enumerate() {
        let version = parse_template(item);
        export.templates.push(
            version.ok_or_else(|| nameless_error(file, TEMPLATES, index, "LaunchTemplateData"))?,
        );
    }
    match take_field(answer, NODE_GROUP) {
        Some(Value::Object(node_group))
            if node_group.get("nodegroupName").is_some_and(Value::is_string) =>
        {
            managed.push(node_group);
            Ok(true)
        }
        Some(_) => Err(nameless_error(file, NODE_GROUP, 0, "nodegroupName")),
        None => Ok(is_known),
    }
}

/// Returns the error that an element has no name. The index starts at zero.
fn nameless_error(file: &str, list: &str, index: usize, field: &str) -> GroupsError {
    GroupsError {
        file: file.to_owned(),
        why: format!("element {} of {list} has no {field}", index + 1),
    }
}

fn parse_group(item: Value) -> Option<NodeGroup> {
    let Value::Object(mut fields) = item else {
        return None;
    };
    let name = take_field(&mut fields, "AutoScalingGroupName")?;
    let tags = take_list(&mut fields, "Tags");
    let tags = tags.iter().filter_map(|tag| {
        Some(Tag {
            key: scalar_text(tag.get("Key")?)?,
            value: text_or_empty(tag.get("Value")),
            is_launched: tag.get("PropagateAtLaunch") == Some(&Value::Bool(true)),
        })
    });
    Some(NodeGroup {
        name: name.as_str().filter(|name| !name.is_empty())?.to_owned(),
        tags: tags.collect(),
        fields,
        managed: None,
    })
}

fn parse_template(item: Value) -> Option<LaunchTemplateVersion> {
    let Value::Object(mut fields) = item else {
        return None;
    };
    let Some(Value::Object(data)) = take_field(&mut fields, "LaunchTemplateData") else {
        return None;
    };
    Some(LaunchTemplateVersion {
        id: text_or_empty(fields.get("LaunchTemplateId")),
        name: text_or_empty(fields.get("LaunchTemplateName")),
        version: fields.get("VersionNumber").and_then(Value::as_i64).unwrap_or(0),
        is_default: fields.get("DefaultVersion") == Some(&Value::Bool(true)),
        data,
    })
}

/// Joins an EKS node group with its Auto Scaling group, which can be absent from the input.
fn join_node_group(managed: Map<String, Value>, groups: &mut Vec<NodeGroup>) {
    let [name, cluster] =
        ["nodegroupName", "clusterName"].map(|field| text_or_empty(managed.get(field)));
    let scaling_groups = managed
        .get("resources")
        .and_then(|resources| resources.get("autoScalingGroups"))
        .and_then(Value::as_array);
    let scaling_groups: Vec<String> = scaling_groups
        .into_iter()
        .flatten()
        .filter_map(|item| item.get("name")?.as_str().map(str::to_owned))
        .collect();
    let node_tags = managed.get("tags").and_then(Value::as_object);
    let node_tags: Vec<Tag> = node_tags
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.starts_with(NODE_TEMPLATE))
        .filter_map(|(key, value)| Some(Tag::new(key, value.as_str()?)))
        .collect();
    if let Some(group) = groups.iter_mut().find(|group| {
        let tagged = group.tag_value("eks:nodegroup-name") == Some(&name)
            && group.tag_value("eks:cluster-name") == Some(&cluster);
        scaling_groups.contains(&group.name) || tagged
    }) {
        // Values of the EKS node group override values of the Auto Scaling group.
        group.tags.retain(|tag| node_tags.iter().all(|other| other.key != tag.key));
        group.tags.extend(node_tags);
        group.managed = Some(managed);
        return;
    }
    // EKS sets these discovery tags on its groups.
    let mut tags = vec![
        Tag::new("eks:nodegroup-name", &name),
        Tag::new("eks:cluster-name", &cluster),
        Tag::new(&format!("{AUTOSCALER}enabled"), "true"),
        Tag::new(&format!("{AUTOSCALER}{cluster}"), "owned"),
    ];
    tags.extend(node_tags);
    let mut fields = Map::new();
    for (from, to) in [("minSize", "MinSize"), ("maxSize", "MaxSize")] {
        let size = managed.get("scalingConfig").and_then(|scaling| scaling.get(from));
        fields.extend(size.map(|size| (to.to_owned(), size.clone())));
    }
    groups.push(NodeGroup {
        name: scaling_groups.into_iter().next().unwrap_or(name),
        fields,
        tags,
        managed: Some(managed),
    });
}

/// A version of a launch template, found by a reference.
struct Reference<'a> {
    /// All versions of the template in the input.
    same: Vec<&'a LaunchTemplateVersion>,
    version: String,
}

impl<'a> Reference<'a> {
    fn from_fields(fields: &Map<String, Value>, templates: &'a [LaunchTemplateVersion]) -> Self {
        let [id, name, version] =
            [["LaunchTemplateId", "id"], ["LaunchTemplateName", "name"], ["Version", "version"]]
                .map(|names| text_or_empty(names.iter().find_map(|name| fields.get(*name))));
        let same = templates.iter().filter(|template| match id.is_empty() {
            true => !name.is_empty() && template.name == name,
            false => template.id == id,
        });
        Self { same: same.collect(), version }
    }
}

/// Finds the version of a launch template that a group or node group references.
pub(super) fn referenced_version<'a>(
    reference: &Map<String, Value>,
    templates: &'a [LaunchTemplateVersion],
) -> Option<&'a LaunchTemplateVersion> {
    let Reference { same, version } = Reference::from_fields(reference, templates);
    let mut all = same.into_iter();
    match version.as_str() {
        LATEST => all.max_by_key(|template| template.version),
        "" | "$Default" => all.find(|template| template.is_default),
        number => all.find(|template| template.version.to_string() == number),
    }
}

/// Returns the version that is assumed to be the latest because the input has no other.
pub(super) fn assumed_latest(
    reference: &Map<String, Value>,
    templates: &[LaunchTemplateVersion],
) -> Option<i64> {
    let Reference { same, version } = Reference::from_fields(reference, templates);
    // Two files can have the same version.
    let first = same.first()?.version;
    let is_alone = same.iter().all(|template| template.version == first);
    (version == LATEST && is_alone).then_some(first)
}
