//! Reads objects of Kubernetes out of YAML or JSON: documents, and lists within them.
//! It must not know which kinds there are.

use serde_json::{Map, Value};
use thiserror::Error;

use super::carry::take;
use crate::config::SourceFile;

/// Bytes of all texts together at most.
pub(crate) const BYTES_MAX: usize = 64 << 20;
/// Objects at most: a large cluster's pools and node classes are hundreds.
pub(crate) const OBJECTS_MAX: usize = 20_000;
/// Characters of a parser's message that are shown.
const MESSAGE_MAX: usize = 300;

/// Why there are no objects.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DocumentError {
    /// It is neither YAML nor JSON, or too deep.
    #[error("read {file}: {why}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// It is too much.
    #[error("read {file}: there are more than {BYTES_MAX} bytes or {OBJECTS_MAX} objects")]
    TooMuch {
        /// The file that is too much.
        file: String,
    },
    /// A document is no object.
    #[error("read {file}: its document {document} is no object with a kind and a name")]
    NoObject {
        /// The file.
        file: String,
        /// Which, from one.
        document: usize,
    },
}

/// An object.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    /// The file it is from.
    pub(crate) file: String,
    /// Group of its API; empty for the core.
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// What else its metadata has.
    pub(crate) metadata: Map<String, Value>,
    /// What it has beside `apiVersion`, `kind`, `metadata` and `status`.
    pub(crate) rest: Map<String, Value>,
}

/// All objects of all files, in order.
pub(crate) fn read(files: &[SourceFile]) -> Result<Vec<Document>, DocumentError> {
    let (mut all, mut bytes) = (Vec::new(), 0_usize);
    for file in files {
        bytes = bytes.saturating_add(file.text.len());
        let too_much = || DocumentError::TooMuch {
            file: file.name.clone(),
        };
        if bytes > BYTES_MAX {
            return Err(too_much());
        }
        let documents = parse(&file.text).map_err(|why| DocumentError::Malformed {
            file: file.name.clone(),
            why,
        })?;
        for (index, value) in documents.into_iter().enumerate() {
            if value.is_null() {
                continue;
            }
            let object = flatten(value, &file.name, None, &mut all);
            object.ok_or_else(|| DocumentError::NoObject {
                file: file.name.clone(),
                document: index + 1,
            })?;
            if all.len() > OBJECTS_MAX {
                return Err(too_much());
            }
        }
    }
    Ok(all)
}

/// The documents of a text. JSON is YAML, but for tabs and for one object right after another.
pub(crate) fn parse(text: &str) -> Result<Vec<Value>, String> {
    if text.trim_start().starts_with('{') {
        let all = serde_json::Deserializer::from_str(text).into_iter();
        if let Ok(all) = all.collect() {
            return Ok(all);
        }
    }
    serde_saphyr::from_multiple(text).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        first.chars().take(MESSAGE_MAX).collect()
    })
}

/// Adds an object, or those of a list. The elements of a list of one kind need not say theirs.
fn flatten(
    value: Value,
    file: &str,
    of: Option<(&str, &str)>,
    all: &mut Vec<Document>,
) -> Option<()> {
    let Value::Object(mut object) = value else {
        return None;
    };
    let mut word = |name: &str, otherwise: Option<&str>| {
        let own = take(&mut object, name);
        let own = own.as_ref().and_then(Value::as_str).or(otherwise);
        own.map(str::to_owned)
    };
    let kind = word("kind", of.map(|(_, kind)| kind))?;
    let api = word("apiVersion", of.map(|(api, _)| api))?;
    let single = kind.strip_suffix("List");
    if let (Some(single), Some(Value::Array(_))) = (single, object.get("items")) {
        let items = take(&mut object, "items");
        let of = Some((api.as_str(), single)).filter(|_| !single.is_empty());
        for item in items
            .as_ref()
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            flatten(item.clone(), file, of, all)?;
        }
        return Some(());
    }
    let Some(Value::Object(mut metadata)) = take(&mut object, "metadata") else {
        return None;
    };
    let mut text = |name: &str| match take(&mut metadata, name) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    let (name, namespace) = (text("name"), text("namespace"));
    take(&mut object, "status");
    let (group, version) = api.rsplit_once('/').unwrap_or(("", &api));
    all.push(Document {
        file: file.to_owned(),
        group: group.to_owned(),
        version: version.to_owned(),
        kind,
        namespace,
        name,
        metadata,
        rest: object,
    });
    Some(())
}
