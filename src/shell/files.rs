//! Reads what a configuration is made of: files, directories of them, variables from outside.
//! It must not know what any of it says.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::config::problem::Problem;
use crate::config::{self, Config, Input, Inputs, SourceFile};
use crate::shell::text;

/// Where the configuration is when nothing else is said.
pub(crate) const DEFAULT_CONFIG: &str = "/etc/outrigger.d";

/// Files of a directory with this ending give values of variables.
const AUTO_VARIABLES: &str = ".auto.vars.hcl";

/// The directory in which systemd puts credentials, and the prefix of those that are secrets.
const CREDENTIALS: (&str, &str) = ("CREDENTIALS_DIRECTORY", "secrets_");

/// A configuration is written by people; what is longer is something else.
const FILE_BYTES: u64 = 16 << 20;

/// Whoever can write a configuration can launch instances with it.
const WRITABLE_BY_ALL: u32 = 0o002;

/// Why a file cannot be had.
#[derive(Debug, Error)]
pub(crate) enum FilesError {
    #[error("read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("read {}: it is not UTF-8 text; save it as UTF-8", path.display())]
    NotText { path: PathBuf },
    #[error(
        "read {}: it has {bytes} bytes, {FILE_BYTES} at most; is it a configuration at all?",
        path.display()
    )]
    TooLong { path: PathBuf, bytes: u64 },
    #[error("read {0}: every user of this host can write it; chmod o-w {0}", path.display())]
    Writable { path: PathBuf },
    #[error(
        "read {}: no file there ends in .hcl or .hcl.json; write one, or name another directory \
         with --config",
        path.display()
    )]
    Empty { path: PathBuf },
}

/// Which files, and which values for variables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// Files and directories of the configuration.
    pub(crate) paths: Vec<PathBuf>,
    /// Files of values for variables.
    pub(crate) variable_files: Vec<PathBuf>,
    /// Values for variables.
    pub(crate) variables: Vec<(String, String)>,
}

/// Why there is no configuration.
#[derive(Debug, Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("the configuration has faults")]
    Problems(Vec<Problem>),
}

/// Reads everything that is wanted and makes one configuration of it.
pub(crate) fn load(wanted: &Wanted) -> Result<Config, LoadError> {
    let (files, mut values) = read_all(&wanted.paths)?;
    for path in &wanted.variable_files {
        values.push(read_source(path)?);
    }
    let input = |(name, value): &(String, String)| Input {
        name: name.clone(),
        value: value.clone(),
    };
    let env = environment();
    let read = |path: &Path| read_text(path).map_err(|error| text::chain(&error));
    let inputs = Inputs {
        vars: wanted.variables.iter().map(input).collect(),
        var_files: values,
        secrets: secrets(&env)?,
        env,
        dir: directory(&wanted.paths),
        read: &read,
    };
    config::load(&files, &inputs).map_err(LoadError::Problems)
}

/// Where relative paths of a configuration start: beside its first file.
fn directory(paths: &[PathBuf]) -> PathBuf {
    let Some(first) = paths.first() else {
        return PathBuf::new();
    };
    if first.is_dir() {
        return first.clone();
    }
    first.parent().map(Path::to_owned).unwrap_or_default()
}

/// Reads each path: a file as it is, of a directory every `*.hcl` and `*.hcl.json` by name. Files
/// of values for variables stand beside them and come second.
fn read_all(paths: &[PathBuf]) -> Result<(Vec<SourceFile>, Vec<SourceFile>), FilesError> {
    let (mut files, mut values) = (Vec::new(), Vec::new());
    for path in paths {
        if !is_directory(path)? {
            files.push(read_source(path)?);
            continue;
        }
        let before = files.len();
        for path in list(path)? {
            let kept = path.to_string_lossy().ends_with(AUTO_VARIABLES);
            let into = if kept { &mut values } else { &mut files };
            into.push(read_source(&path)?);
        }
        if files.len() == before {
            return Err(FilesError::Empty { path: path.clone() });
        }
    }
    Ok((files, values))
}

fn fault(path: &Path) -> impl FnOnce(io::Error) -> FilesError {
    move |source| FilesError::Read {
        path: path.to_owned(),
        source,
    }
}

fn is_directory(path: &Path) -> Result<bool, FilesError> {
    Ok(fs::metadata(path).map_err(fault(path))?.is_dir())
}

fn list(directory: &Path) -> Result<Vec<PathBuf>, FilesError> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(fault(directory))? {
        let path = entry.map_err(fault(directory))?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if is_source(&name) && !is_directory(&path)? {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Whether a file of this name is configuration, and not what an editor leaves beside it.
fn is_source(name: &str) -> bool {
    let temporary = name.starts_with(['.', '#']) || name.ends_with(['~', '#']);
    !temporary && (name.ends_with(".hcl") || name.ends_with(".hcl.json"))
}

/// One file as a source; its name in messages is the path as given.
pub(crate) fn read_source(path: &Path) -> Result<SourceFile, FilesError> {
    let about = fs::metadata(path).map_err(fault(path))?;
    let bytes = about.len();
    if bytes > FILE_BYTES {
        return Err(FilesError::TooLong {
            path: path.to_owned(),
            bytes,
        });
    }
    if about.permissions().mode() & WRITABLE_BY_ALL != 0 {
        return Err(FilesError::Writable {
            path: path.to_owned(),
        });
    }
    Ok(SourceFile::new(
        path.display().to_string(),
        read_text(path)?,
    ))
}

/// The text of a file of any length.
pub(crate) fn read_text(path: &Path) -> Result<String, FilesError> {
    let bytes = fs::read(path).map_err(fault(path))?;
    String::from_utf8(bytes).map_err(|_| FilesError::NotText {
        path: path.to_owned(),
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "configurations may name env() by design"
)]
fn environment() -> BTreeMap<String, String> {
    let texts = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(texts).collect()
}

/// Secrets by name: systemd hands the directory `secrets` over as files `secrets_NAME`.
fn secrets(environment: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, FilesError> {
    let Some(directory) = environment.get(CREDENTIALS.0).map(Path::new) else {
        return Ok(BTreeMap::new());
    };
    let mut secrets = BTreeMap::new();
    for entry in fs::read_dir(directory).map_err(fault(directory))? {
        let path = entry.map_err(fault(directory))?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if let Some(name) = name.strip_prefix(CREDENTIALS.1) {
            // A trailing line break belongs to the file, not to the secret.
            let text = read_text(&path)?.trim_end_matches(['\n', '\r']).to_owned();
            secrets.insert(name.to_owned(), text);
        }
    }
    Ok(secrets)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{FilesError, read_all};

    #[test]
    fn a_directory_gives_its_sources_by_name() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in [
            "v.auto.vars.hcl",
            "b.hcl",
            "a.hcl.json",
            "c.txt",
            ".#b.hcl",
            "b.hcl~",
            "#b.hcl#",
            ".x.hcl",
        ] {
            fs::write(dir.path().join(name), name).expect("written");
        }
        fs::create_dir(dir.path().join("d.hcl")).expect("made");
        let (files, values) = read_all(&[dir.path().to_owned()]).expect("read");
        let texts: Vec<&str> = files.iter().map(|file| file.text.as_str()).collect();
        assert_eq!(texts, ["a.hcl.json", "b.hcl"]);
        assert_eq!(values.len(), 1);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let check = |path: &std::path::Path, expect: &str| {
            let error = read_all(&[path.to_owned()]).expect_err("it cannot be read");
            assert!(error.to_string().contains(expect), "{error}");
            assert!(
                error.to_string().contains(&path.display().to_string()),
                "{error}"
            );
        };
        check(dir.path(), "no file there ends in .hcl");
        check(&dir.path().join("none.hcl"), "read");
        let binary = dir.path().join("x.hcl");
        fs::write(&binary, [0xff, 0xfe]).expect("written");
        check(&binary, "not UTF-8");
        assert!(matches!(
            read_all(&[dir.path().to_owned()]),
            Err(FilesError::NotText { .. })
        ));
    }
}
