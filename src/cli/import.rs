//! `outrigger import`: HCL of Karpenter's objects, in files or a cluster, or of Cluster Autoscaler.
//! It must not know what becomes of them.

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

/// Where a kubeconfig is that nobody names, from a user's home.
const KUBECONFIG: &str = ".kube/config";

/// Who may read a file that seems to hold a secret, and who any other, if the umask lets them.
const PRIVATE: u32 = 0o600;
const PUBLIC: u32 = 0o666;

/// What the exit code says.
const CODES: &str = "Exit codes: 0 everything was carried over, 2 something was dropped or is \
                     missing, 1 nothing could be imported. What was dropped is told, and stands as \
                     a comment beside the block that it would be in.";

#[derive(Args, Debug)]
#[command(after_help = CODES)]
pub(crate) struct ImportArgs {
    /// A file, or a directory of files that end in .yaml, .yml or .json; `-` is standard input
    #[arg(short = 'f', long = "file", value_name = "FILE", default_value = "-")]
    files: Vec<PathBuf>,
    /// Import from Cluster Autoscaler: its Deployment, alone or among other objects, or a text of
    /// its flags; `-` is standard input
    #[arg(
        long = "cluster-autoscaler",
        value_name = "FILE",
        conflicts_with = "files"
    )]
    autoscaler: Option<PathBuf>,
    /// What AWS says of its groups: the answer of `aws autoscaling describe-auto-scaling-groups`,
    /// of `aws ec2 describe-launch-template-versions` or of `aws eks describe-nodegroup`; may be
    /// given several times
    #[arg(long = "asg", value_name = "FILE", requires = "autoscaler")]
    groups: Vec<PathBuf>,
    /// Read Karpenter's objects from a cluster; nothing is written there
    #[arg(long, conflicts_with_all = ["files", "autoscaler"])]
    from_cluster: bool,
    /// Kubeconfig of the cluster; $KUBECONFIG or ~/.kube/config if missing
    #[arg(long, value_name = "FILE", requires = "from_cluster")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; its current one if missing
    #[arg(long, value_name = "NAME", requires = "from_cluster")]
    context: Option<String>,
    /// Write files into this directory, none that is there already, in place of standard output
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Clusters it is for, by name or pattern; all if missing
    #[arg(long = "cluster", value_name = "GLOB", num_args = 1.., value_delimiter = ',')]
    clusters: Vec<String>,
}

pub(crate) fn execute(arguments: &ImportArgs) -> anyhow::Result<ExitCode> {
    let options = ImportOptions {
        clusters: arguments.clusters.clone(),
    };
    let (imported, whose) = match &arguments.autoscaler {
        Some(path) => (
            of_autoscaler(path, arguments, &options)?,
            "Cluster Autoscaler's",
        ),
        None => (import(&karpenters(arguments)?, &options)?, "Karpenter's"),
    };
    match &arguments.directory {
        Some(directory) => write(directory, &imported)?,
        None => io::stdout().write_all(imported.text().as_bytes())?,
    }
    let skipped = imported.skipped.iter();
    let skipped =
        skipped.map(|(kind, count)| format!("skipped {kind} ({count}): nothing of {whose}"));
    let more = imported.notes.iter().cloned().chain(skipped);
    Ok(diagnostics::carried(&imported.losses, more))
}

fn of_autoscaler(
    path: &Path,
    arguments: &ImportArgs,
    options: &ImportOptions,
) -> anyhow::Result<Imported> {
    let groups = &arguments.groups;
    if path == Path::new("-") && groups.iter().any(|own| own == Path::new("-")) {
        bail!("read standard input for --cluster-autoscaler and for --asg: write one into a file");
    }
    let mut answers = Vec::new();
    for path in groups {
        answers.extend(read(path)?);
    }
    // One of a directory's files would be as good as the other.
    if path.is_dir() {
        bail!("read {}: it is a directory; name the file", path.display());
    }
    let file = read(path)?.pop().context("read the autoscaler")?;
    Ok(cluster_autoscaler::import::import(
        &file, &answers, options,
    )?)
}

/// Karpenter's objects, from files or from a cluster.
fn karpenters(arguments: &ImportArgs) -> anyhow::Result<Vec<SourceFile>> {
    if !arguments.from_cluster {
        let mut sources = Vec::new();
        for path in &arguments.files {
            sources.extend(read(path)?);
        }
        return Ok(sources);
    }
    let kubeconfig = Kubeconfig {
        path: kubeconfig(arguments.kubeconfig.as_deref())?,
        context: arguments.context.clone(),
    };
    of_cluster(&kubeconfig)
}

/// Karpenter's objects of a live cluster.
#[cfg(feature = "daemon")]
fn of_cluster(kubeconfig: &Kubeconfig) -> anyhow::Result<Vec<SourceFile>> {
    Ok(super::wait_for(karpenter_objects::read(kubeconfig))??)
}

/// Karpenter's objects of a live cluster, which this build cannot ask.
#[cfg(not(feature = "daemon"))]
fn of_cluster(kubeconfig: &Kubeconfig) -> anyhow::Result<Vec<SourceFile>> {
    Err(super::features::refused(
        &format!("read the cluster of {}", kubeconfig.path.display()),
        "print its objects with kubectl -o yaml and name the file with -f",
    ))
}

/// The kubeconfig that is meant, as kubectl finds it.
#[expect(
    clippy::disallowed_methods,
    reason = "KUBECONFIG is how users say this to every program"
)]
fn kubeconfig(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    if let Some(all) = std::env::var_os("KUBECONFIG").filter(|own| !own.is_empty()) {
        let mut paths = std::env::split_paths(&all).filter(|own| !own.as_os_str().is_empty());
        return match (paths.next(), paths.next()) {
            (Some(path), None) => Ok(path),
            _ => bail!("find the kubeconfig: KUBECONFIG names several; give one with --kubeconfig"),
        };
    }
    let home = std::env::home_dir().context("find the kubeconfig: give it with --kubeconfig")?;
    Ok(home.join(KUBECONFIG))
}

fn read(path: &Path) -> anyhow::Result<Vec<SourceFile>> {
    if path == Path::new("-") {
        return Ok(vec![SourceFile::new("<stdin>", stdin::read()?)]);
    }
    let mut paths = vec![path.to_owned()];
    if path.is_dir() {
        let named = |path: &PathBuf| {
            let end = path.extension().unwrap_or_default();
            ["yaml", "yml", "json"].iter().any(|own| end == *own) && path.is_file()
        };
        let entries = fs::read_dir(path).with_context(|| format!("read {}", path.display()))?;
        let entries = entries.map(|entry| entry.map(|entry| entry.path()));
        let all: io::Result<Vec<PathBuf>> = entries.collect();
        paths = all.with_context(|| format!("read {}", path.display()))?;
        paths.retain(named);
        paths.sort();
    }
    let text = |path: &PathBuf| {
        let text = files::read_limited(path)?;
        Ok(SourceFile::new(path.display().to_string(), text))
    };
    paths.iter().map(text).collect()
}

/// Writes each kind of blocks into a file, and a cluster to start from where no other file is.
fn write(directory: &Path, imported: &Imported) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    let mut files: Vec<(&str, &str)> = Vec::new();
    let entries = fs::read_dir(directory);
    let mut entries = entries.with_context(|| format!("read {}", directory.display()))?;
    let is_hcl = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|end| end == "hcl");
    if !imported.has_cluster() && !entries.any(|entry| entry.as_ref().is_ok_and(is_hcl)) {
        files.push((CLUSTERS, CLUSTER_EXAMPLE));
    }
    files.extend(
        imported
            .parts
            .iter()
            .map(|part| (part.file, part.text.as_str())),
    );
    // All or nothing, as far as can be seen beforehand.
    let mut paths = files.iter().map(|(name, _)| directory.join(name));
    if let Some(path) = paths.find(|path| path.exists()) {
        bail!("write {}: it is there already", path.display());
    }
    for (name, text) in files {
        let path = directory.join(name);
        let mode = match text.contains(cluster_autoscaler::import::SECRET_NOTE) {
            true => PRIVATE,
            false => PUBLIC,
        };
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(mode).open(&path);
        let mut file = file.with_context(|| format!("write {}", path.display()))?;
        let written = file.write_all(text.as_bytes());
        written.with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
