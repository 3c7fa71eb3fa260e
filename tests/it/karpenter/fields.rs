//! Any value of a field is converted or reported as dropped.

use outrigger::migrate::karpenter::DroppedField;
use outrigger::migrate::karpenter::import::Imported;
use serde_json::{Value, json};

use super::{imported, loaded, read};

/// Fields without a report, by the kind or the name of the object: the container of a pod, memory
/// as a part of a sum, and a type that another list of types already excludes.
const UNREPORTED: [(&str, &str); 5] = [
    ("PodTemplate", "/template/spec/containers/0/name"),
    ("PodTemplate", "/template/spec/containers/0/image"),
    ("PodTemplate", "/template/spec/containers/0/resources/requests/memory"),
    ("PodTemplate", "/template/spec/containers/0"),
    ("twice", "/spec/requirements/0/values/0"),
];

/// Replacement values, each with the words by which the HCL shows it.
fn odd_values() -> [(Value, &'static [&'static str]); 6] {
    [
        (json!("zzz"), &["zzz"]),
        (json!(7777), &["7777"]),
        (json!(true), &["true"]),
        (json!([{}]), &[" {}"]),
        (json!({}), &["{}"]),
        (json!({ "zza": { "zzb": 1 } }), &["zza", "zzb"]),
    ]
}

/// Collects the paths of all fields as JSON pointers, with the first element of each list.
fn paths(value: &Value, path: &str, all: &mut Vec<String>) {
    all.push(path.to_owned());
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                paths(inner, &format!("{path}/{name}"), all);
            }
        }
        Value::Array(items) => {
            if let Some(first) = items.first() {
                paths(first, &format!("{path}/0"), all);
            }
        }
        _ => {}
    }
}

/// Imports objects. Returns `None` if they are rejected.
fn import_objects(objects: &[Value]) -> Option<Imported> {
    imported(&json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string()).ok()
}

/// Whether the dropped field is this field, or an object or list that contains it.
fn is_loss_of(loss: &DroppedField, pointer: &str) -> bool {
    let mut path = String::new();
    for step in pointer.split('/').skip(1) {
        let step = step.replace("~1", "/").replace("~0", "~");
        match step.parse::<usize>() {
            Ok(index) => path.push_str(&format!("[{index}]")),
            Err(_) if path.is_empty() => path.push_str(&step),
            Err(_) => path.push_str(&format!(".{step}")),
        }
        // A dropped field of a template has the prefix of its buffer.
        if loss.path.split(": ").any(|own| own == path) {
            return true;
        }
    }
    false
}

/// Whether one result has a dropped field or words that the other lacks.
fn adds(one: &Imported, other: &Imported, words: &[&str]) -> bool {
    let count = |own: &Imported, word: &str| own.text().matches(word).count();
    let lost = one.losses.iter().any(|own| !other.losses.contains(own));
    lost || words.iter().all(|word| count(one, word) > count(other, word))
}

/// Replaces each field of all objects of a case.
fn check_case(case: &str) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/karpenter/import");
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&read(&folder.join(case))).expect("a case in YAML");
    let objects: Vec<Value> = match documents.as_slice() {
        [list] if list["kind"] == "List" => list["items"].as_array().expect("items").clone(),
        _ => documents,
    };
    let mut silent = Vec::new();
    // One object at a time; a buffer together with its pod template.
    let pods = |own: &Value| own["kind"] == "PodTemplate" || own["kind"] == "CapacityBuffer";
    let (pods, others): (Vec<Value>, Vec<Value>) = objects.into_iter().partition(pods);
    let mut sets: Vec<Vec<Value>> = others.into_iter().map(|own| vec![own]).collect();
    sets.extend((!pods.is_empty()).then_some(pods));
    for (objects, index) in
        sets.iter().flat_map(|own| (0..own.len()).map(move |index| (own, index)))
    {
        let name = match objects[index].get("template") {
            Some(_) => "template",
            None => "spec",
        };
        let mut all = Vec::new();
        paths(&objects[index][name], &format!("/{name}"), &mut all);
        let Some(as_it_is) = import_objects(objects) else {
            continue;
        };
        for path in all {
            let mut objects = objects.clone();
            let kind = objects[index]["kind"].as_str().expect("a kind").to_owned();
            let own = objects[index]["metadata"]["name"].as_str();
            if [Some(&*kind), own].iter().flatten().any(|own| UNREPORTED.contains(&(own, &path))) {
                continue;
            }
            let place = objects[index].pointer_mut(&path).expect("a field");
            let was = std::mem::take(place);
            let Some(without) = import_objects(&objects) else {
                continue;
            };
            for (value, words) in odd_values() {
                let empty = match &was {
                    Value::Array(_) => json!([]),
                    Value::Object(_) => json!({}),
                    _ => Value::Null,
                };
                if value == was || value == empty {
                    continue;
                }
                *objects[index].pointer_mut(&path).expect("a field") = value.clone();
                let Some(own) = import_objects(&objects) else {
                    continue;
                };
                loaded(&own.text());
                let is_reported = own.losses.iter().any(|own| is_loss_of(own, &path))
                    || adds(&own, &without, words)
                    || adds(&own, &as_it_is, words);
                if !is_reported {
                    silent.push(format!("{kind} {path}: {value}"));
                }
            }
        }
    }
    assert!(silent.is_empty(), "{case}: {silent:#?}");
}

#[test]
fn no_v1_field_is_dropped_silently() {
    check_case("v1.yaml");
}

#[test]
fn no_v1beta1_field_is_dropped_silently() {
    check_case("v1beta1.yaml");
}

#[test]
fn no_v1alpha5_field_is_dropped_silently() {
    check_case("v1alpha5.yaml");
}

#[test]
fn no_v1alpha4_field_is_dropped_silently() {
    check_case("v1alpha4.yaml");
}

#[test]
fn no_overlay_or_buffer_field_is_dropped_silently() {
    check_case("overlays-and-buffers.json");
}
