//! Reads Kubernetes objects from YAML or JSON: documents, and lists within them.

use serde_json::{Map, Value};
use thiserror::Error;

use crate::config::SourceFile;
use crate::migrate::field_mapping::{take_field, take_list, take_object};

/// Maximum size of all files together, in bytes.
pub(crate) const BYTES_MAX: usize = 64 << 20;
/// Maximum number of objects. A large cluster has hundreds of pools and node classes.
pub(crate) const OBJECTS_MAX: usize = 20_000;
/// Maximum number of characters of a parser message.
const MESSAGE_MAX: usize = 300;

/// Why objects cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DocumentError {
    /// The file is neither YAML nor JSON, or is nested too deeply.
    #[error("cannot read {file}: {why}")]
    Malformed {
        /// The file.
        file: String,
        /// The message of the parser.
        why: String,
    },
    /// The input is too large.
    #[error("cannot read {file}: more than {BYTES_MAX} bytes or {OBJECTS_MAX} objects")]
    TooMuch {
        /// The file that exceeds the limit.
        file: String,
    },
    /// A document is not an object.
    #[error("cannot read {file}: {place} is not an object with a kind and an apiVersion")]
    NoObject {
        /// The file.
        file: String,
        /// The position: documents are counted from one, list items from zero.
        place: String,
    },
}

/// An object.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    /// The file that contains the object.
    pub(crate) file: String,
    /// Group of its API; empty for the core.
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// All other metadata.
    pub(crate) metadata: Map<String, Value>,
    /// All fields except `apiVersion`, `kind`, `metadata` and `status`.
    pub(crate) rest: Map<String, Value>,
}

/// The content of all files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Documents {
    /// The objects, in order.
    pub(crate) objects: Vec<Manifest>,
    /// The number of documents without a kind, such as Helm values or Kustomize files.
    pub(crate) strange: usize,
}

/// Reads the objects of all files. With a single file, a document that is not an object is an
/// error.
pub(crate) fn read_manifests(files: &[SourceFile]) -> Result<Documents, DocumentError> {
    let (mut all, mut bytes) = (Documents::default(), 0_usize);
    for SourceFile { name, text, .. } in files {
        bytes = bytes.saturating_add(text.len());
        if bytes > BYTES_MAX {
            return Err(DocumentError::TooMuch { file: name.clone() });
        }
        let documents = parse(text).map_err(|error| DocumentError::Malformed {
            file: name.clone(),
            why: error.to_string(),
        })?;
        for (index, value) in documents.into_iter().enumerate() {
            if value.is_null() {
                continue;
            }
            if files.len() > 1 && value.get("kind").is_none_or(Value::is_null) {
                all.strange += 1;
                continue;
            }
            let place = format!("document {}", index + 1);
            flatten_lists(value, name, &place, None, &mut all.objects)?;
            if all.objects.len() > OBJECTS_MAX {
                return Err(DocumentError::TooMuch { file: name.clone() });
            }
        }
    }
    Ok(all)
}

/// The message of the YAML parser, up to a maximum length.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct ParseError(String);

/// Parses the documents of a file. JSON is parsed separately: YAML does not allow tabs or
/// concatenated objects.
pub(crate) fn parse(text: &str) -> Result<Vec<Value>, ParseError> {
    if text.trim_start().starts_with('{') {
        let all = serde_json::Deserializer::from_str(text).into_iter();
        if let Ok(all) = all.collect() {
            return Ok(all);
        }
    }
    serde_saphyr::from_multiple(text).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        ParseError(first.chars().take(MESSAGE_MAX).collect())
    })
}

/// Adds an object, or the elements of a list. Elements of a typed list can omit their kind.
fn flatten_lists(
    value: Value,
    file: &str,
    place: &str,
    default: Option<(&str, &str)>,
    all: &mut Vec<Manifest>,
) -> Result<(), DocumentError> {
    let Value::Object(mut object) = value else {
        return Err(not_an_object_error(file, place));
    };
    let [api, kind] = ["apiVersion", "kind"].map(|name| take_field(&mut object, name));
    let api = api.as_ref().and_then(Value::as_str);
    let kind = kind.as_ref().and_then(Value::as_str);
    let (Some(api), Some(kind)) =
        (api.or(default.map(|(api, _)| api)), kind.or(default.map(|(_, kind)| kind)))
    else {
        return Err(not_an_object_error(file, place));
    };
    if let Some(single) = kind.strip_suffix("List")
        && let Some(Value::Array(_) | Value::Null) = object.get("items")
    {
        let default = Some((api, single)).filter(|_| !single.is_empty());
        let items = take_list(&mut object, "items");
        for (index, item) in items.into_iter().enumerate() {
            if !item.is_null() {
                let place = format!("{place}, items[{index}]");
                flatten_lists(item, file, &place, default, all)?;
            }
        }
        return Ok(());
    }
    let mut metadata = take_object(&mut object, "metadata");
    // A value that is not a string is kept, so that it is reported.
    let [name, namespace] = ["name", "namespace"].map(|field| match metadata.get(field) {
        Some(Value::String(text)) => {
            let text = text.clone();
            metadata.shift_remove(field);
            text
        }
        _ => String::new(),
    });
    take_field(&mut object, "status");
    let (group, version) = api.rsplit_once('/').unwrap_or(("", api));
    all.push(Manifest {
        file: file.to_owned(),
        group: group.to_owned(),
        version: version.to_owned(),
        kind: kind.to_owned(),
        namespace,
        name,
        metadata,
        rest: object,
    });
    Ok(())
}

/// Returns the error that a document is not an object.
fn not_an_object_error(file: &str, place: &str) -> DocumentError {
    DocumentError::NoObject { file: file.to_owned(), place: place.to_owned() }
}
