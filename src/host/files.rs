//! Reads the inputs of a configuration: files, directories and external variables.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::config::diagnostic::{Diagnostic, ProblemCode};
use crate::config::{
    self, Config, FileReadError, Inputs, ParameterReader, ParameterState, SourceFile, VariableInput,
};
use crate::host::text;

/// Default path of the configuration.
pub(crate) const DEFAULT_CONFIG: &str = "/etc/outrigger.d";

/// Extension of files with variable values.
const AUTO_VARIABLES: &str = ".auto.vars.hcl";

/// The systemd credentials directory, and the file name prefix of secrets.
const CREDENTIALS: (&str, &str) = ("CREDENTIALS_DIRECTORY", "secrets_");
/// The source directory of these credentials, for the shell of root. Other users cannot read it.
const SECRETS: &str = "/etc/outrigger/credentials";

/// Maximum size of a configuration file.
pub(crate) const FILE_BYTES: u64 = 16 << 20;

/// A world-writable configuration would allow every user to launch instances.
const WRITABLE_BY_ALL: u32 = 0o002;

/// Why a file cannot be read or written.
#[derive(Debug, Error)]
pub(crate) enum FilesError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot format {}: its name must end in .hcl, .tf or .tfvars", path.display())]
    NotNative { path: PathBuf },
    #[error("cannot read {}: not valid UTF-8", path.display())]
    NotText { path: PathBuf },
    #[error("cannot read {}: larger than {FILE_BYTES} bytes", path.display())]
    TooLong { path: PathBuf },
    #[error("cannot read {}: not a regular file", path.display())]
    NotRegular { path: PathBuf },
    #[error("cannot read {}: it is world-writable", path.display())]
    Writable { path: PathBuf },
    #[error("cannot read {}: it contains no .hcl or .hcl.json file", path.display())]
    Empty { path: PathBuf },
}

impl FilesError {
    /// The fix.
    fn help(&self) -> String {
        match self {
            Self::Read { source, .. } => match source.kind() {
                ErrorKind::NotFound => "set an existing file or directory".to_owned(),
                ErrorKind::PermissionDenied => {
                    "grant read permission to the user of outrigger".to_owned()
                }
                _ => "check that cat can read it".to_owned(),
            },
            Self::Write { source, .. } => match source.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                    "free disk space, then retry".to_owned()
                }
                _ => "grant write permission to the current user".to_owned(),
            },
            Self::NotNative { .. } => "set HCL files or their directory".to_owned(),
            Self::NotText { .. } => "save it as UTF-8".to_owned(),
            Self::TooLong { .. } => "set a configuration file; this file is too large".to_owned(),
            Self::NotRegular { .. } => "set a regular file, not a pipe or device".into(),
            Self::Writable { path } => format!("chmod o-w {}", path.display()),
            Self::Empty { .. } => "create one, or set another directory with --config".to_owned(),
        }
    }

    /// The error as a diagnostic of the configuration.
    pub(crate) fn to_diagnostic(&self) -> Diagnostic {
        let detail = format!("Outrigger {}.", text::error_chain(self));
        Diagnostic::error(ProblemCode::Unreadable, detail).help(self.help())
    }
}

/// The files and variable values to read.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigSources {
    /// Files and directories of the configuration.
    pub(crate) paths: Vec<PathBuf>,
    /// Files with variable values.
    pub(crate) variable_files: Vec<PathBuf>,
    /// Variable values.
    pub(crate) variables: Vec<(String, String)>,
}

/// Why an external value is not available.
#[cfg(feature = "daemon")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParameterUnavailable {
    /// True if a retry may succeed, so that the last value remains in use.
    pub(crate) is_retryable: bool,
    /// The reason, without a full stop.
    pub(crate) why: String,
}

/// Reads all sources and builds one configuration, or returns all errors of the files and in the
/// files. It contacts no other host.
pub(crate) fn load_config(wanted: &ConfigSources) -> Result<Config, Vec<Diagnostic>> {
    read_sources(wanted).build_config(&|_| ParameterState::Unasked)
}

/// Reads all sources.
pub(crate) fn read_sources(wanted: &ConfigSources) -> LoadedSources {
    let mut sources = ReadFiles::default();
    for path in &wanted.paths {
        sources.read_path(path);
    }
    for path in &wanted.variable_files {
        sources.add_values(path);
    }
    let environment = process_environment();
    let secrets = read_secrets(&environment).unwrap_or_else(|fault| {
        sources.faults.push(fault);
        BTreeMap::new()
    });
    LoadedSources {
        sources,
        environment,
        secrets,
        variables: wanted.variables.clone(),
        directory: base_directory(&wanted.paths),
        named: RefCell::default(),
    }
}

/// Inputs of a configuration, as read.
#[derive(Debug, Default)]
pub(crate) struct LoadedSources {
    sources: ReadFiles,
    environment: BTreeMap<String, String>,
    secrets: BTreeMap<String, String>,
    variables: Vec<(String, String)>,
    directory: PathBuf,
    /// Files that the configuration references, read on first use.
    named: RefCell<BTreeMap<PathBuf, Result<String, FileReadError>>>,
}

impl LoadedSources {
    /// Reads a file that the configuration references. Each file is read once.
    fn read_named(&self, path: &Path) -> Result<String, FileReadError> {
        let mut named = self.named.borrow_mut();
        let read = named.entry(path.to_owned());
        read.or_insert_with(|| read_referenced(path)).clone()
    }

    /// Builds a configuration with these parameters, or returns all errors. The result is
    /// deterministic.
    pub(crate) fn build_config(
        &self,
        parameter: &ParameterReader<'_>,
    ) -> Result<Config, Vec<Diagnostic>> {
        let inputs = Inputs {
            vars: self
                .variables
                .iter()
                .map(|(name, value)| VariableInput { name: name.clone(), value: value.clone() })
                .collect(),
            var_files: self.sources.values.clone(),
            secrets: self.secrets.clone(),
            env: self.environment.clone(),
            dir: self.directory.clone(),
            read: &|path| self.read_named(path),
            parameter,
        };
        let faults = self.sources.faults.iter();
        let mut problems: Vec<Diagnostic> = faults.map(FilesError::to_diagnostic).collect();
        if self.sources.files.is_empty() && !problems.is_empty() {
            return Err(problems);
        }
        match config::load(&self.sources.files, &inputs) {
            Ok(config) if problems.is_empty() => Ok(config),
            Ok(config) => {
                problems.extend(config.warnings);
                Err(problems)
            }
            Err(found) => {
                problems.extend(found);
                Err(problems)
            }
        }
    }
}

/// Base directory of relative paths: the directory of the first file. It is absolute, because the
/// paths may be passed to other processes.
fn base_directory(paths: &[PathBuf]) -> PathBuf {
    let Some(first) = paths.first() else {
        return PathBuf::new();
    };
    let directory = if first.is_dir() {
        first.clone()
    } else {
        first.parent().map(Path::to_owned).unwrap_or_default()
    };
    // The parent of a bare file name is the current directory.
    let relative = Path::new(".").join(&directory);
    std::path::absolute(relative).unwrap_or(directory)
}

/// The files that were read, and the errors.
#[derive(Debug, Default)]
struct ReadFiles {
    files: Vec<SourceFile>,
    /// Files of values for variables.
    values: Vec<SourceFile>,
    faults: Vec<FilesError>,
}

impl ReadFiles {
    /// Reads a path: a file, or all `*.hcl` and `*.hcl.json` files of a directory, sorted by name.
    /// Files with variable values are read from the same directory.
    fn read_path(&mut self, path: &Path) {
        match is_directory(path) {
            Ok(false) => self.add_file(path),
            Ok(true) => self.add_directory(path),
            Err(fault) => self.faults.push(fault),
        }
    }

    fn add_directory(&mut self, directory: &Path) {
        let paths = match config_files(directory) {
            Ok(paths) => paths,
            Err(fault) => return self.faults.push(fault),
        };
        let (values, files): (Vec<PathBuf>, Vec<PathBuf>) =
            paths.into_iter().partition(|path| path.to_string_lossy().ends_with(AUTO_VARIABLES));
        if files.is_empty() {
            let path = directory.to_owned();
            self.faults.push(FilesError::Empty { path });
        }
        files.iter().for_each(|path| self.add_file(path));
        values.iter().for_each(|path| self.add_values(path));
    }

    fn add_file(&mut self, path: &Path) {
        match read_source(path) {
            Ok(file) => self.files.push(file),
            Err(fault) => self.faults.push(fault),
        }
    }

    fn add_values(&mut self, path: &Path) {
        match read_source(path) {
            Ok(file) => self.values.push(file),
            Err(fault) => self.faults.push(fault),
        }
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> FilesError {
    move |source| FilesError::Read { path: path.to_owned(), source }
}

fn is_directory(path: &Path) -> Result<bool, FilesError> {
    Ok(fs::metadata(path).map_err(io_error(path))?.is_dir())
}

/// Lists a directory: names and paths.
fn directory_entries(directory: &Path) -> Result<Vec<(String, PathBuf)>, FilesError> {
    let all = fs::read_dir(directory).map_err(io_error(directory))?;
    all.map(|entry| {
        let entry = entry.map_err(io_error(directory))?;
        Ok((entry.file_name().to_string_lossy().into_owned(), entry.path()))
    })
    .collect()
}

/// The configuration files of a directory, sorted by name. An entry whose metadata cannot be read
/// is included, so that reading it returns the error.
fn config_files(directory: &Path) -> Result<Vec<PathBuf>, FilesError> {
    let mut paths = Vec::new();
    for (name, path) in directory_entries(directory)? {
        if is_source(&name) && !path.is_dir() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Files in native HCL syntax: a named file, or all `*.hcl` files of a directory, recursively on
/// request. Also returns the errors. Links to directories are not followed, to avoid cycles.
pub(crate) fn native_sources(path: &Path, recursive: bool) -> (Vec<PathBuf>, Vec<FilesError>) {
    let (mut found, mut faults) = (Vec::new(), Vec::new());
    if let Err(fault) = find_native(path, recursive, &mut found, &mut faults) {
        faults.push(fault);
    }
    (found, faults)
}

/// Returns whether the path has one of these extensions.
fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    let extension = path.extension().unwrap_or_default();
    extensions.iter().any(|wanted| extension == *wanted)
}

fn find_native(
    path: &Path,
    recursive: bool,
    found: &mut Vec<PathBuf>,
    faults: &mut Vec<FilesError>,
) -> Result<(), FilesError> {
    if !is_directory(path)? {
        if !has_extension(path, &["hcl", "tf", "tfvars"]) {
            let path = path.to_owned();
            return Err(FilesError::NotNative { path });
        }
        found.push(path.to_owned());
        return Ok(());
    }
    let files = config_files(path)?;
    found.extend(files.into_iter().filter(|path| has_extension(path, &["hcl"])));
    if recursive {
        let mut within = directory_entries(path)?;
        within.sort();
        for (name, path) in within {
            let is_folder = fs::symlink_metadata(&path).is_ok_and(|about| about.is_dir());
            if is_folder
                && !name.starts_with('.')
                && let Err(fault) = find_native(&path, recursive, found, faults)
            {
                faults.push(fault);
            }
        }
    }
    Ok(())
}

/// Returns whether a file name is a configuration file and not a backup of an editor.
fn is_source(name: &str) -> bool {
    let temporary = name.starts_with(['.', '#']) || name.ends_with(['~', '#']);
    !temporary && (name.ends_with(".hcl") || name.ends_with(".hcl.json"))
}

/// A file as a source. Messages show its path as given.
fn read_source(path: &Path) -> Result<SourceFile, FilesError> {
    let text = read_limited(path)?;
    let about = fs::metadata(path).map_err(io_error(path))?;
    if about.permissions().mode() & WRITABLE_BY_ALL != 0 {
        return Err(FilesError::Writable { path: path.to_owned() });
    }
    Ok(SourceFile::new(path.display().to_string(), text))
}

/// Reads a file that a configuration references.
pub(crate) fn read_referenced(path: &Path) -> Result<String, FileReadError> {
    read_limited(path).map_err(|error| FileReadError(text::error_chain(&error)))
}

/// Reads a regular file. Limits its size and does not block.
pub(crate) fn read_limited(path: &Path) -> Result<String, FilesError> {
    let path_buf = path.to_owned();
    if !fs::metadata(path).map_err(io_error(path))?.is_file() {
        return Err(FilesError::NotRegular { path: path_buf });
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io_error(path))?;
    let mut limited = file.take(FILE_BYTES + 1);
    limited.read_to_end(&mut bytes).map_err(io_error(path))?;
    if limited.limit() == 0 {
        return Err(FilesError::TooLong { path: path_buf });
    }
    String::from_utf8(bytes).map_err(|_| FilesError::NotText { path: path_buf })
}

/// Reads a file of any type and size.
pub(crate) fn read_text(path: &Path) -> Result<String, FilesError> {
    let bytes = fs::read(path).map_err(io_error(path))?;
    String::from_utf8(bytes).map_err(|_| FilesError::NotText { path: path.to_owned() })
}

/// Replaces the text of a file, or creates the file. A reader always finds the whole old text or
/// the whole new text, even after a power failure. If the path is a link, this replaces the file
/// that it points to. If it is a device or a pipe, this writes into it.
pub(crate) fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let target = match fs::metadata(path) {
        Ok(about) if about.is_file() => fs::canonicalize(path)?,
        Ok(_) => {
            return OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes());
        }
        Err(_) => path.to_owned(),
    };
    let mut beside = target.as_os_str().to_owned();
    beside.push(".new");
    let mut file = File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, target)
}

#[expect(clippy::disallowed_methods, reason = "configurations may name env() by design")]
fn process_environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Secrets by name. systemd passes the files of the directory `secrets` as `secrets_NAME`.
fn read_secrets(
    environment: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, FilesError> {
    match environment.get(CREDENTIALS.0) {
        Some(directory) => secrets_in(Path::new(directory), CREDENTIALS.1),
        None => match secrets_in(Path::new(SECRETS), "") {
            Err(FilesError::Read { source, .. }) if is_inaccessible(&source) => Ok(BTreeMap::new()),
            secrets => secrets,
        },
    }
}

/// Returns whether the directory does not exist or the user has no access to it.
fn is_inaccessible(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::NotADirectory
    )
}

/// The secrets of a directory, by file name without the prefix.
fn secrets_in(directory: &Path, prefix: &str) -> Result<BTreeMap<String, String>, FilesError> {
    let mut secrets = BTreeMap::new();
    for (name, path) in directory_entries(directory)? {
        if let Some(name) = name.strip_prefix(prefix) {
            // A trailing line break is not part of the secret.
            let text = read_limited(&path)?.trim_end_matches(['\n', '\r']).to_owned();
            secrets.insert(name.to_owned(), text);
        }
    }
    Ok(secrets)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::{
        ConfigSources, FILE_BYTES, FilesError, ReadFiles, load_config, replace_file, secrets_in,
    };

    fn read(path: &Path) -> ReadFiles {
        let mut sources = ReadFiles::default();
        sources.read_path(path);
        sources
    }

    #[test]
    fn secrets_are_named_by_the_part_after_the_prefix() {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in [("secrets_a", "one\n"), ("secrets_b", "two"), ("c", "three")] {
            fs::write(dir.path().join(name), text).expect("written");
        }
        let read = |prefix| {
            let all = secrets_in(dir.path(), prefix).expect("they are read");
            let texts = all.iter().map(|(name, text)| format!("{name}={text}"));
            texts.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(read("secrets_"), "a=one b=two");
        assert_eq!(read(""), "c=three secrets_a=one secrets_b=two");
        assert!(secrets_in(&dir.path().join("none"), "").is_err());
    }

    #[test]
    fn directory_sources_are_read_in_name_order() {
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
        let sources = read(dir.path());
        let texts: Vec<&str> = sources.files.iter().map(|file| file.text.as_str()).collect();
        assert_eq!(texts, ["a.hcl.json", "b.hcl"]);
        assert_eq!(sources.values.len(), 1);
        assert!(sources.faults.is_empty(), "{:?}", sources.faults);
    }

    #[test]
    fn unreadable_files_are_named_in_the_diagnostic() {
        let dir = tempfile::tempdir().expect("a directory");
        let check = |path: &Path, expect: &str| {
            let sources = read(path);
            let [fault] = sources.faults.as_slice() else {
                panic!("one fault: {:?}", sources.faults)
            };
            let text = fault.to_diagnostic().render().replace("\n  ", " ");
            assert!(text.contains(expect), "{text}");
            assert!(text.contains(&path.display().to_string()), "{text}");
            assert!(text.contains("= help:"), "{text}");
        };
        check(dir.path(), "it contains no .hcl");
        check(&dir.path().join("none.hcl"), "No such file");
        check(Path::new("/dev/null"), "not a regular file");
        let file = dir.path().join("x.hcl");
        fs::write(&file, [0xff, 0xfe]).expect("written");
        check(&file, "not valid UTF-8");
        fs::write(&file, "").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("changed");
        check(&file, "it is world-writable");
        let long = fs::File::create(&file).expect("made");
        long.set_len(FILE_BYTES + 1).expect("made longer");
        check(&file, "larger than");
        assert!(matches!(read(dir.path()).faults.as_slice(), [FilesError::TooLong { .. }]));
    }

    #[test]
    fn unreadable_file_does_not_hide_other_problems() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("a.hcl"), [0xff]).expect("written");
        fs::write(dir.path().join("b.hcl"), "nonsense {}\n").expect("written");
        std::os::unix::fs::symlink("nowhere", dir.path().join("c.hcl")).expect("linked");
        let wanted =
            ConfigSources { paths: vec![dir.path().to_owned()], ..ConfigSources::default() };
        let problems = load_config(&wanted).expect_err("it has faults");
        let codes: Vec<&str> = problems.iter().map(|it| it.code.as_str()).collect();
        assert_eq!(codes, ["unreadable", "unreadable", "unknown-block"]);
    }

    #[test]
    fn replacing_a_file_keeps_links_and_devices() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::os::unix::fs::symlink(&file, &link).expect("linked");
        for (path, text) in [(&file, "one"), (&link, "two"), (&file, "3")] {
            replace_file(path, text).expect("written");
            assert_eq!(fs::read_to_string(&file).expect("the file exists"), text);
        }
        assert_eq!(fs::read_link(&link).expect("a link"), file);
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 2);
        let device = dir.path().join("device");
        std::os::unix::fs::symlink("/dev/null", &device).expect("linked");
        replace_file(&device, "text").expect("written");
        let metadata = fs::metadata(&device).expect("the device exists");
        assert!(!metadata.is_file(), "the device is a file now");
        assert!(replace_file(&dir.path().join("none/file"), "text").is_err());
    }

    #[test]
    fn base_directory_is_absolute() {
        let directory = super::base_directory(&["config/x.hcl".into()]);
        assert!(directory.is_absolute() && directory.ends_with("config"));
        assert!(super::base_directory(&["x.hcl".into()]).is_absolute());
    }
}
