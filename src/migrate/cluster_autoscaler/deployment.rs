//! Finds the autoscaler among Kubernetes objects, or in a text file with its flags.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use thiserror::Error;

use super::command_line::split_words;
use crate::config::SourceFile;
use crate::migrate::field_mapping::{list_texts, scalar_text, take_field, take_text};
use crate::migrate::manifests::{self, BYTES_MAX, DocumentError, Manifest};

/// The name of the program, which is also the end of its image names.
const PROGRAM: &str = "cluster-autoscaler";
/// The ConfigMap of the expander `priority`, and its key.
const PRIORITIES: (&str, &str) = ("cluster-autoscaler-priority-expander", "priorities");
/// Environment variables with the region, in order of precedence.
const REGION: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];
/// Maximum number of bytes that variable expansion adds.
const PUT_IN_MAX: usize = 16_384;
/// Kinds that run pods, with the path of the pod spec.
const KINDS: [(&str, &str); 6] = [
    ("Pod", "spec"),
    ("Deployment", "spec.template.spec"),
    ("DaemonSet", "spec.template.spec"),
    ("StatefulSet", "spec.template.spec"),
    ("ReplicaSet", "spec.template.spec"),
    ("ReplicationController", "spec.template.spec"),
];

/// Why the autoscaler was not found.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProgramError {
    /// The file has no objects.
    #[error(transparent)]
    Documents(#[from] DocumentError),
    /// No object runs the autoscaler.
    #[error(
        "cannot find Cluster Autoscaler in {file}: {contents}; give its Deployment, or a file with \
         its flags"
    )]
    None {
        /// The file.
        file: String,
        /// The other objects of the file.
        contents: String,
    },
    /// Several objects run the autoscaler.
    #[error("several objects in {file} run Cluster Autoscaler: {}; give one", all.join(", "))]
    Several {
        /// The file.
        file: String,
        /// The objects that run the autoscaler.
        all: Vec<String>,
    },
}

/// The configuration of an autoscaler.
#[derive(Clone, Debug, Default)]
pub(super) struct Deployment {
    /// The object that runs the autoscaler, such as `Deployment/cluster-autoscaler`, or the file.
    pub(super) of: String,
    /// The arguments of the program.
    pub(super) words: Vec<String>,
    /// The region from its environment.
    pub(super) region: Option<String>,
    /// The content of its priority ConfigMap.
    pub(super) priorities: Option<String>,
    /// The kinds of the other objects, with their counts.
    pub(super) skipped: BTreeMap<String, usize>,
}

/// Finds the autoscaler in a file.
pub(super) fn find_autoscaler(file: &SourceFile) -> Result<Deployment, ProgramError> {
    if file.text.len() <= BYTES_MAX && has_only_flags(&file.text) {
        let lines = file.text.lines().map(without_dash);
        let lines: Vec<&str> = lines.filter(|line| !line.starts_with('#')).collect();
        let words = split_words(&lines.join("\n"));
        return Ok(Deployment {
            of: file.name.clone(),
            words: after_name(words),
            ..Deployment::default()
        });
    }
    let (mut found, mut others) = (Vec::new(), Deployment::default());
    for document in read_objects(file)? {
        let (kind, name) = (document.kind.clone(), document.name.clone());
        if kind == "ConfigMap" && name == PRIORITIES.0 {
            others.priorities = read_priorities(document);
            continue;
        }
        match autoscaler_of(document) {
            Some(program) => found.push(program),
            None => *others.skipped.entry(kind).or_default() += 1,
        }
    }
    let file = file.name.clone();
    if found.len() > 1 {
        let all = found.into_iter().map(|program| program.of).collect();
        return Err(ProgramError::Several { file, all });
    }
    let Some(program) = found.pop() else {
        let kinds: Vec<&str> = others.skipped.keys().map(String::as_str).collect();
        let contents = match kinds.is_empty() {
            true => "there is no object".to_owned(),
            false => format!("there is only {}", kinds.join(", ")),
        };
        return Err(ProgramError::None { file, contents });
    };
    Ok(Deployment { priorities: others.priorities, skipped: others.skipped, ..program })
}

/// Reads the objects of a file. Detects templates, to give a better error.
fn read_objects(file: &SourceFile) -> Result<Vec<Manifest>, DocumentError> {
    let all =
        manifests::read_manifests(std::slice::from_ref(file)).map(|documents| documents.objects);
    all.map_err(|error| match error {
        DocumentError::Malformed { file: name, why } if file.text.contains("{{") => {
            let why = format!("{why}; the file is a template; give the output of helm template");
            DocumentError::Malformed { file: name, why }
        }
        error => error,
    })
}

/// Returns whether a file has flags, on one line or as a list, instead of a YAML document.
fn has_only_flags(text: &str) -> bool {
    let lines = text.lines().map(without_dash);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let Some(word) = lines.next().and_then(|line| line.split_whitespace().next()) else {
        return false;
    };
    let flag = word.trim_start_matches(['\'', '"']);
    let named = flag.trim_start_matches('-');
    let is_flag = named.len() < flag.len() && named.starts_with(|c: char| c.is_ascii_alphabetic());
    is_flag || is_program(word.trim_end_matches('\\'))
}

/// Removes the dash of a list item.
fn without_dash(line: &str) -> &str {
    let line = line.trim();
    line.strip_prefix("- ").map_or(line, str::trim_start)
}

/// Returns whether a word is the program, with or without a path.
fn is_program(word: &str) -> bool {
    let base = word.rsplit('/').next().unwrap_or(word);
    !word.starts_with('-') && base == PROGRAM
}

/// Returns the arguments of the program in a shell command.
fn after_name(words: Vec<String>) -> Vec<String> {
    let name = words.iter().position(|word| is_program(word));
    words
        .into_iter()
        .skip(name.map_or(0, |index| index + 1))
        .take_while(|word| !ends_command(word))
        .collect()
}

/// Returns whether a word ends a shell command or redirects its streams.
fn ends_command(word: &str) -> bool {
    word.starts_with(['|', ';', '&', '>', '<']) || word.starts_with("2>") || word == "1>"
}

/// Returns the autoscaler that an object runs, if any.
fn autoscaler_of(mut document: Manifest) -> Option<Deployment> {
    let (_, path) = KINDS.iter().find(|(kind, _)| *kind == document.kind)?;
    let containers = take_field(&mut document.rest, &format!("{path}.containers"))?;
    let of = format!("{}/{}", document.kind, document.name);
    let mut containers = containers.as_array()?.iter();
    let (words, region) = containers.find_map(|item| container_arguments(item.as_object()?))?;
    Some(Deployment { of, words, region, ..Deployment::default() })
}

/// Returns the arguments of the autoscaler in a container, and the region from its environment.
fn container_arguments(container: &Map<String, Value>) -> Option<(Vec<String>, Option<String>)> {
    let mut words = list_texts(container.get("command"));
    words.extend(list_texts(container.get("args")));
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let image = image.split(['@', ':']).next().unwrap_or_default();
    // The program can be run by a shell.
    let script = words.iter().find(|word| {
        word.contains(char::is_whitespace) && split_words(word).iter().any(|part| is_program(part))
    });
    if let Some(script) = script {
        words = split_words(script);
    }
    if !words.iter().any(|word| is_program(word)) && !image.ends_with(PROGRAM) {
        return None;
    }
    let environment = literal_environment(container);
    let mut expandable = PUT_IN_MAX;
    for word in &mut words {
        *word = expand_variables(word, &environment, &mut expandable);
    }
    let region = REGION.iter().find_map(|name| environment.get(*name).cloned());
    Some((after_name(words), region))
}

/// Expands variables in a word like Kubernetes: once, from left to right. `$$` is an escaped
/// `$`. Unknown variables are kept, and so are all variables beyond the size limit.
fn expand_variables(
    word: &str,
    environment: &BTreeMap<String, String>,
    expandable: &mut usize,
) -> String {
    let (mut out, mut rest) = (String::new(), word);
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let named = after.strip_prefix('(').and_then(|tail| tail.split_once(')'));
        rest = match (named, after.strip_prefix('$')) {
            (Some((name, after)), _) => {
                let value = environment.get(name);
                match value.filter(|value| value.len() <= *expandable) {
                    Some(value) => {
                        *expandable -= value.len();
                        out.push_str(value);
                    }
                    None => out.extend(["$(", name, ")"]),
                }
                after
            }
            (None, twice) => {
                out.push('$');
                twice.unwrap_or(after)
            }
        };
    }
    out.push_str(rest);
    out
}

/// Returns the environment variables of a container that have a literal value.
fn literal_environment(container: &Map<String, Value>) -> BTreeMap<String, String> {
    let items = container.get("env").and_then(Value::as_array);
    let items = items.into_iter().flatten();
    items
        .filter_map(|item| {
            let value = scalar_text(item.get("value")?)?;
            Some((item.get("name")?.as_str()?.to_owned(), value))
        })
        .collect()
}

fn read_priorities(mut document: Manifest) -> Option<String> {
    match take_field(&mut document.rest, "data") {
        Some(Value::Object(mut data)) => take_text(&mut data, PRIORITIES.1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{PUT_IN_MAX, SourceFile, expand_variables, find_autoscaler};

    fn words(text: &str) -> Result<Vec<String>, String> {
        let found = find_autoscaler(&SourceFile::new("in", text));
        found.map(|autoscaler| autoscaler.words).map_err(|error| error.to_string())
    }

    fn pod(container: &str) -> String {
        format!(
            "kind: Pod\napiVersion: v1\nmetadata: {{name: a}}\nspec:\n  containers: [{container}]\n"
        )
    }

    #[test]
    fn autoscaler_flags_are_found_in_every_input_form() {
        for text in [
            "--a=1 -v=4",
            "# of prod\n./cluster-autoscaler \\\n  --a=1 \\\n  -v=4\n",
            "- --a=1\n- '-v=4'\n",
            &pod("{image: x/cluster-autoscaler:v1, args: ['--a=1', '-v=4']}"),
            &pod("{name: b}, {command: [./cluster-autoscaler, '--a=1'], args: ['-v=4']}"),
            &pod("{command: [sh, -c, './cluster-autoscaler --a=1 -v=4 2>&1 | tee log']}"),
            &pod(
                "{command: [cluster-autoscaler, --a=$(ONE), -v=4], env: [{name: ONE, value: '1'}]}",
            ),
        ] {
            let found = words(text);
            assert_eq!(found, Ok(vec!["--a=1".to_owned(), "-v=4".to_owned()]), "{text}");
        }
    }

    #[test]
    fn variables_are_expanded_once_up_to_a_size_limit() {
        let rows = [("A", "1"), ("B", "$(A)$(B)"), ("L", &"x".repeat(PUT_IN_MAX + 1))];
        let environment = rows.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let environment = environment.into_iter().collect();
        for (word, expect) in [
            ("--a=$(A) $(A)", "--a=1 1"),
            ("$(B)", "$(A)$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$(C) $A $ $(A", "$(C) $A $ $(A"),
            ("$(L)-$(A)", "$(L)-1"),
        ] {
            let mut left = PUT_IN_MAX;
            assert_eq!(expand_variables(word, &environment, &mut left), expect, "{word}");
        }
        let (word, mut left) = ("$(A)".repeat(PUT_IN_MAX + 1), PUT_IN_MAX);
        let expanded = expand_variables(&word, &environment, &mut left);
        assert_eq!(expanded, "1".repeat(PUT_IN_MAX) + "$(A)");
    }

    #[test]
    fn input_without_exactly_one_autoscaler_is_rejected() {
        let other = pod("{image: nginx}");
        let autoscaler = pod("{image: cluster-autoscaler}");
        let twice = format!("{autoscaler}---\n{autoscaler}");
        for (text, expect) in [
            ("", "there is no object"),
            (&other, "there is only Pod"),
            (&twice, "run Cluster Autoscaler: Pod/a, Pod/a"),
            ("a: [", "cannot read in: "),
            ("{{ .Values.x }}", "give the output of helm template"),
        ] {
            let error = words(text).expect_err(text);
            assert!(error.contains(expect), "{error}");
        }
    }
}
