//! `outrigger import`: converts Karpenter objects, from files or a cluster, or a Cluster Autoscaler
//! deployment to HCL.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;

use super::{diagnostics, stdin};
use crate::config::SourceFile;
use crate::host::files;
#[cfg(feature = "daemon")]
use crate::kubernetes::karpenter_objects;
use crate::migrate::cluster_autoscaler;
use crate::migrate::karpenter::import::{
    CLUSTER_EXAMPLE, CLUSTERS, ImportOptions, Imported, import,
};
use crate::model::cluster::Kubeconfig;

/// The default kubeconfig, relative to the user's home directory.
const KUBECONFIG: &str = ".kube/config";

/// Modes of files that seem to contain a secret, and of all other files (before the umask).
const PRIVATE: u32 = 0o600;
const PUBLIC: u32 = 0o666;

/// The meaning of the exit codes.
const CODES: &str = "Exit codes: 0 everything was imported, 2 something was dropped or is missing, \
                     1 nothing could be imported. Dropped fields are printed on stderr and written \
                     as comments next to the block they belong to.";

#[derive(Args, Debug)]
#[command(after_help = CODES)]
pub(crate) struct ImportArgs {
    /// A file, or a directory with .yaml, .yml and .json files; `-` reads standard input
    #[arg(short = 'f', long = "file", value_name = "FILE", default_value = "-")]
    files: Vec<PathBuf>,
    /// Import from Cluster Autoscaler: a file with its Deployment, alone or among other objects, or
    /// with its flags; `-` reads standard input
    #[arg(long = "cluster-autoscaler", value_name = "FILE", conflicts_with = "files")]
    autoscaler: Option<PathBuf>,
    /// The node groups in AWS: the output of `aws autoscaling describe-auto-scaling-groups`, `aws
    /// ec2 describe-launch-template-versions` or `aws eks describe-nodegroup`; can be given several
    /// times
    #[arg(long = "asg", value_name = "FILE", requires = "autoscaler")]
    groups: Vec<PathBuf>,
    /// Read the Karpenter objects of a cluster, without writing to it
    #[arg(long, conflicts_with_all = ["files", "autoscaler"])]
    from_cluster: bool,
    /// Kubeconfig of the cluster; default: $KUBECONFIG, else ~/.kube/config
    #[arg(long, value_name = "FILE", requires = "from_cluster")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; default: its current context
    #[arg(long, value_name = "NAME", requires = "from_cluster")]
    context: Option<String>,
    /// Write files to this directory instead of standard output; existing files are not overwritten
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Clusters that the imported pools are for, as names or patterns; default: all clusters
    #[arg(long = "cluster", value_name = "GLOB", num_args = 1.., value_delimiter = ',')]
    clusters: Vec<String>,
}

pub(crate) fn execute(arguments: &ImportArgs) -> anyhow::Result<ExitCode> {
    let options = ImportOptions { clusters: arguments.clusters.clone() };
    let (imported, whose) = match &arguments.autoscaler {
        Some(path) => (import_autoscaler(path, arguments, &options)?, "Cluster Autoscaler"),
        None => (import(&read_karpenter_objects(arguments)?, &options)?, "Karpenter"),
    };
    match &arguments.directory {
        Some(directory) => write_files(directory, &imported)?,
        None => io::stdout().write_all(imported.text().as_bytes())?,
    }
    let skipped = imported.skipped.iter();
    let skipped =
        skipped.map(|(kind, count)| format!("skipped {kind} ({count}): not an object of {whose}"));
    let more = imported.notes.iter().cloned().chain(skipped);
    Ok(diagnostics::print_losses(&imported.losses, more))
}

fn import_autoscaler(
    path: &Path,
    arguments: &ImportArgs,
    options: &ImportOptions,
) -> anyhow::Result<Imported> {
    let groups = &arguments.groups;
    if path == Path::new("-") && groups.iter().any(|group| group == Path::new("-")) {
        bail!("--cluster-autoscaler and --asg cannot both read standard input: use a file for one");
    }
    let mut answers = Vec::new();
    for path in groups {
        answers.extend(read_sources(path)?);
    }
    // A directory does not determine which of its files is meant.
    if path.is_dir() {
        bail!("cannot read {}: it is a directory; give the file", path.display());
    }
    let file = read_sources(path)?.pop().context("cannot read the autoscaler")?;
    Ok(cluster_autoscaler::import::import(&file, &answers, options)?)
}

/// Reads Karpenter objects from files or from a cluster.
fn read_karpenter_objects(arguments: &ImportArgs) -> anyhow::Result<Vec<SourceFile>> {
    if !arguments.from_cluster {
        let mut sources = Vec::new();
        for path in &arguments.files {
            sources.extend(read_sources(path)?);
        }
        return Ok(sources);
    }
    let kubeconfig = Kubeconfig {
        path: find_kubeconfig(arguments.kubeconfig.as_deref())?,
        context: arguments.context.clone(),
    };
    read_from_cluster(&kubeconfig)
}

/// Reads the Karpenter objects of a live cluster.
#[cfg(feature = "daemon")]
fn read_from_cluster(kubeconfig: &Kubeconfig) -> anyhow::Result<Vec<SourceFile>> {
    Ok(super::wait_for(karpenter_objects::read_all_objects(kubeconfig))??)
}

/// Fails: this build cannot connect to clusters.
#[cfg(not(feature = "daemon"))]
fn read_from_cluster(kubeconfig: &Kubeconfig) -> anyhow::Result<Vec<SourceFile>> {
    Err(super::features::unsupported_operation(
        &format!("cannot read the cluster of {}", kubeconfig.path.display()),
        "write its objects to a file with kubectl get -o yaml and give the file with -f",
    ))
}

/// Finds the kubeconfig in the same way as kubectl.
#[expect(
    clippy::disallowed_methods,
    reason = "KUBECONFIG is the convention of all Kubernetes clients"
)]
fn find_kubeconfig(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    if let Some(all) = std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty()) {
        let mut paths = std::env::split_paths(&all).filter(|path| !path.as_os_str().is_empty());
        return match (paths.next(), paths.next()) {
            (Some(path), None) => Ok(path),
            _ => bail!("KUBECONFIG names several files: choose one with --kubeconfig"),
        };
    }
    let home = std::env::home_dir().context("cannot find the kubeconfig: give --kubeconfig")?;
    Ok(home.join(KUBECONFIG))
}

fn read_sources(path: &Path) -> anyhow::Result<Vec<SourceFile>> {
    if path == Path::new("-") {
        return Ok(vec![SourceFile::new("<stdin>", stdin::read_config_text()?)]);
    }
    let mut paths = vec![path.to_owned()];
    if path.is_dir() {
        let entries =
            fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
        let entries = entries.map(|entry| entry.map(|entry| entry.path()));
        let all: io::Result<Vec<PathBuf>> = entries.collect();
        paths = all.with_context(|| format!("cannot read {}", path.display()))?;
        paths.retain(|path| {
            let end = path.extension().unwrap_or_default();
            ["yaml", "yml", "json"].iter().any(|it| end == *it) && path.is_file()
        });
        paths.sort();
    }
    paths
        .iter()
        .map(|path| {
            let text = files::read_limited(path)?;
            Ok(SourceFile::new(path.display().to_string(), text))
        })
        .collect()
}

/// Writes one file for each type of block. Adds an example cluster if nothing defines one.
fn write_files(directory: &Path, imported: &Imported) -> anyhow::Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let mut files: Vec<(&str, &str)> = Vec::new();
    let entries = fs::read_dir(directory);
    let entries = entries.with_context(|| format!("cannot read {}", directory.display()))?;
    let mut present = entries.flatten().map(|entry| entry.path());
    if !imported.has_cluster()
        && !present.any(|path| path.extension().is_some_and(|it| it == "hcl"))
    {
        files.push((CLUSTERS, CLUSTER_EXAMPLE));
    }
    files.extend(imported.parts.iter().map(|part| (part.file, part.text.as_str())));
    // All paths are checked before any file is written.
    let mut paths = files.iter().map(|(name, _)| directory.join(name));
    if let Some(path) = paths.find(|path| path.exists()) {
        bail!("cannot write {}: the file exists", path.display());
    }
    for (name, text) in files {
        let path = directory.join(name);
        let mode = match text.contains(cluster_autoscaler::import::SECRET_NOTE) {
            true => PRIVATE,
            false => PUBLIC,
        };
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(mode).open(&path);
        let mut file = file.with_context(|| format!("cannot write {}", path.display()))?;
        let written = file.write_all(text.as_bytes());
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
