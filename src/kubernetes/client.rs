//! A connection to one cluster's API, from a kubeconfig: TLS verified, every call limited in time.
//! It must not know what is asked over it.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt;
use kube::client::ClientBuilder;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig as File, KubeconfigError};
use kube::{Client, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::Mutex as Turn;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;
use tower::util::option_layer;

use crate::host::files::{self, FilesError};
use crate::host::text;
use crate::kubernetes::exec_credential::{self, Credentials, PluginError};
use crate::kubernetes::token_layer::{BearerToken, TokenLayer};
use crate::kubernetes::watch_activity::WatchActivity;
use crate::model::cluster::{ApiSettings, Kubeconfig};
use crate::model::id::LeaseName;
use crate::model::proxy::Proxy;
use crate::outbound::clock_skew::SkewGauge;
use crate::outbound::fence::{self, Fence};
use crate::outbound::rate_limiter::Limiter;

/// Time for a TCP connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Time for a request to be written.
const WRITE: Duration = Duration::from_secs(30);
/// Time to read files.
const READ: Duration = Duration::from_secs(8);

/// Why there is no connection.
#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    #[error(transparent)]
    File(#[from] FilesError),
    #[error("use the kubeconfig {}", .0.display())]
    Plugin(PathBuf, #[source] PluginError),
    #[error(
        "use the kubeconfig {}: the auth provider {name:?} is gone from Kubernetes; name its exec \
         plugin instead",
        path.display()
    )]
    Gone { path: PathBuf, name: String },
    #[error(
        "use the kubeconfig {}: its files do not come within {} s",
        .0.display(),
        READ.as_secs()
    )]
    Late(PathBuf),
    #[error("use the kubeconfig {}", .0.display())]
    Panicked(PathBuf, #[source] JoinError),
    #[error("read the kubeconfig {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: Box<KubeconfigError>,
    },
    #[error("use {context} of the kubeconfig {}", path.display())]
    Context {
        path: PathBuf,
        context: String,
        #[source]
        source: Box<KubeconfigError>,
    },
    #[error("use the API at {0}: {1}")]
    Issued(String, String),
    #[error("make a client of {context} of the kubeconfig {}", path.display())]
    Client {
        path: PathBuf,
        context: String,
        #[source]
        source: Box<kube::Error>,
    },
}

impl ConnectError {
    /// The stable name.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::File(_) => "kubeconfig-unreadable",
            Self::Read { .. } => "kubeconfig-invalid",
            Self::Context { .. } => "kubeconfig-context",
            Self::Late(_) | Self::Plugin(_, PluginError::Late) => "kubeconfig-late",
            Self::Panicked(..) => "kubeconfig-fault",
            Self::Issued(..) => "endpoint-invalid",
            Self::Plugin(..) | Self::Gone { .. } | Self::Client { .. } => "kubeconfig-credentials",
        }
    }

    /// Whether it may be over by itself: what is in files stays as it is.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::File(_) | Self::Read { .. } | Self::Context { .. } | Self::Gone { .. } => false,
            Self::Late(_)
            | Self::Panicked(..)
            | Self::Plugin(..)
            | Self::Issued(..)
            | Self::Client { .. } => true,
        }
    }
}

/// A client, what it counts, and how often it may be used for calls.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) pulses: WatchActivity,
    pub(crate) limiter: Limiter,
    /// By how much the clock of this host differs from the API server's.
    pub(crate) skew: SkewGauge,
    /// The address of the API.
    pub(crate) server: String,
    /// The authorities that vouch for it, as DER; empty where the host's own do.
    pub(crate) authorities: Vec<Vec<u8>>,
    /// The file that named it.
    pub(crate) kubeconfig: PathBuf,
    /// Differs between contents of that file.
    pub(crate) print: u64,
    /// What keeps us from changing anything where another host leads.
    pub(crate) fence: Fence,
    /// Where the cluster's Lease is.
    pub(crate) lease: LeaseName,
}

/// A cluster that is reached with tokens that somebody makes.
pub(crate) struct TokenCluster {
    /// URL of its API.
    pub(crate) endpoint: String,
    /// The authorities that vouch for it, as PEM.
    pub(crate) ca: Vec<u8>,
    pub(crate) bearer: TokenLayer,
}

/// A client of a cluster that has no kubeconfig. Nothing is sent yet.
pub(crate) fn connect_issued(
    issued: TokenCluster,
    api: &ApiSettings,
) -> Result<Connection, ConnectError> {
    let TokenCluster {
        endpoint,
        ca,
        bearer,
    } = issued;
    let fault = |why: String| ConnectError::Issued(endpoint.clone(), why);
    let url = endpoint
        .parse()
        .map_err(|_| fault("it is no URL".to_owned()))?;
    let certificates = CertificateDer::pem_slice_iter(&ca).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| fault(format!("its CA: {error}")))?;
    if certificates.is_empty() {
        return Err(fault("its CA holds no certificate".to_owned()));
    }
    let authorities: Vec<Vec<u8>> = certificates.into_iter().map(|own| own.to_vec()).collect();
    let mut config = Config::new(url);
    config.root_cert = Some(authorities.clone());
    let opened = open(config, Some(bearer), api).map_err(|error| fault(error.to_string()))?;
    let mut print = DefaultHasher::new();
    (&endpoint, &authorities).hash(&mut print);
    Ok(Connection {
        print: print.finish(),
        ..opened
    })
}

/// A client of what is configured, with all that its files hold. Nothing is sent yet.
fn open(
    mut config: Config,
    bearer: Option<TokenLayer>,
    api: &ApiSettings,
) -> Result<Connection, Box<kube::Error>> {
    config.connect_timeout = Some(CONNECT);
    config.write_timeout = Some(WRITE);
    // The engine tries again, and decides anew before it does. A refused eviction comes as 429.
    config.default_retry = false;
    lead(&mut config, api.proxy.as_ref());
    let server = config.cluster_url.to_string();
    let authorities = config.root_cert.clone().unwrap_or_default();
    let (fence, pulses, skew) = (
        Fence::default(),
        WatchActivity::default(),
        SkewGauge::default(),
    );
    let builder = ClientBuilder::try_from(config)?.with_layer(&skew);
    let builder = builder.with_layer(&fence).with_layer(&pulses);
    Ok(Connection {
        client: builder.with_layer(&option_layer(bearer)).build(),
        pulses,
        limiter: Limiter::new(api.qps, api.burst),
        skew,
        server: server.trim_end_matches('/').to_owned(),
        authorities,
        kubeconfig: PathBuf::new(),
        print: 0,
        fence,
        lease: LeaseName::default(),
    })
}

/// Has requests go by a proxy, if one serves the API.
fn lead(config: &mut Config, proxy: Option<&Proxy>) {
    let Some(proxy) = proxy else { return };
    let host = config.cluster_url.host().unwrap_or_default();
    // Of this form it always is one.
    config.proxy_url = match proxy.serves(host) {
        true => proxy.with_credentials().parse().ok(),
        false => None,
    };
}

/// Reads a kubeconfig and makes a client of it. Nothing is sent yet, but a plugin that it names
/// runs.
pub(crate) async fn connect(
    kubeconfig: &Kubeconfig,
    api: &ApiSettings,
) -> Result<Connection, ConnectError> {
    let path = kubeconfig.path.as_path();
    let (own, runtime) = (kubeconfig.clone(), Handle::current());
    let load = move || runtime.block_on(load(&own));
    let Loaded {
        mut config,
        mut print,
        context,
    } = apart(kubeconfig, load).await??;
    let server = config.cluster_url.to_string();
    let user = &mut config.auth_info;
    let bearer = introduce(path, &server, user).await?;
    // A certificate that a plugin gave has another client made when it is another.
    user.client_certificate_data.hash(&mut print);
    let api = api.clone();
    let opened = apart(kubeconfig, move || open(config, bearer, &api)).await?;
    let opened = opened.map_err(|source| ConnectError::Client {
        path: path.to_owned(),
        context,
        source,
    })?;
    Ok(Connection {
        kubeconfig: path.to_owned(),
        print: print.finish(),
        ..opened
    })
}

/// What a kubeconfig says.
struct Loaded {
    config: Config,
    print: DefaultHasher,
    /// What the context is called in messages.
    context: String,
}

async fn load(kubeconfig: &Kubeconfig) -> Result<Loaded, ConnectError> {
    let path = kubeconfig.path.as_path();
    let mut print = DefaultHasher::new();
    files::read_text(path)?.hash(&mut print);
    let file = read(path)?;
    let context = context_name(&file, kubeconfig);
    let options = KubeConfigOptions {
        context: kubeconfig.context.clone(),
        ..KubeConfigOptions::default()
    };
    match Config::from_custom_kubeconfig(file, &options).await {
        Ok(config) => Ok(Loaded {
            config,
            print,
            context,
        }),
        Err(source) => Err(ConnectError::Context {
            path: path.to_owned(),
            context,
            source: Box::new(source),
        }),
    }
}

/// Whose turn it is to read the files of a kubeconfig and its context, while somebody does.
type Readers = BTreeMap<(PathBuf, Option<String>), Arc<Turn<()>>>;
static READERS: Mutex<Readers> = Mutex::new(BTreeMap::new());

/// Reads files on a thread of its own, which nobody can end where one does not come: whoever reads
/// those of the same kubeconfig next waits for that one, and begins no other.
async fn apart<T: Send + 'static>(
    kubeconfig: &Kubeconfig,
    reading: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ConnectError> {
    let path = || kubeconfig.path.clone();
    let turn = {
        let mut readers = READERS.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|_, turn| Arc::strong_count(turn) > 1);
        let key = (path(), kubeconfig.context.clone());
        readers.entry(key).or_default().clone()
    };
    let read = async {
        let turn = turn.lock_owned().await;
        let task = spawn_blocking(move || {
            let _turn = turn;
            reading()
        });
        task.await
            .map_err(|error| ConnectError::Panicked(path(), error))
    };
    timeout(READ, read)
        .await
        .unwrap_or_else(|_| Err(ConnectError::Late(path())))
}

/// Has a plugin say who we are, where one is named and nothing else says it: so kubectl goes by
/// what is there. kube would run it on a thread that nobody can end, and run another beside it.
async fn introduce(
    path: &Path,
    server: &str,
    user: &mut AuthInfo,
) -> Result<Option<TokenLayer>, ConnectError> {
    // kube would run a command for it too. Source: Kubernetes 1.26, which has none but `oidc`.
    if let Some(own) = user.auth_provider.as_ref().filter(|own| own.name != "oidc") {
        let name = text::bounded(&own.name);
        let path = path.to_owned();
        return Err(ConnectError::Gone { path, name });
    }
    let says = user.auth_provider.is_some()
        || user.username.is_some() && user.password.is_some()
        || user.token.is_some()
        || user.token_file.is_some();
    let Some(exec) = user.exec.take().filter(|_| !says) else {
        return Ok(None);
    };
    let first = exec_credential::credentials(&exec).await;
    let first = first.map_err(|error| ConnectError::Plugin(path.to_owned(), error))?;
    if let Some((certificate, key)) = &first.identity {
        user.client_certificate_data = Some(STANDARD.encode(certificate));
        user.client_key_data = Some(STANDARD.encode(key).into());
    }
    let token = |own: Credentials| {
        let until = own.until;
        own.token.map(|text| BearerToken { text, until })
    };
    let Some(first) = token(first) else {
        return Ok(None);
    };
    Ok(Some(TokenLayer::start(server, first, move || {
        let exec = exec.clone();
        async move {
            let made = exec_credential::credentials(&exec).await;
            let made = made.map_err(|error| format!("exec-plugin: {}", text::chain(&error)))?;
            token(made).ok_or("exec-plugin: it printed no token".to_owned())
        }
        .boxed()
    })))
}

fn read(path: &Path) -> Result<File, ConnectError> {
    File::read_from(path).map_err(|source| ConnectError::Read {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

fn context_name(file: &File, kubeconfig: &Kubeconfig) -> String {
    let named = kubeconfig
        .context
        .as_deref()
        .or(file.current_context.as_deref());
    named.map_or("the context (none is named)".to_owned(), |it| {
        format!("the context {it:?}")
    })
}

impl Connection {
    /// The same for an engine that stands for one term: whatever it sends passes in no other.
    pub(crate) fn of_term(&self, term: u64) -> Self {
        let fence = self.fence.of_term(term);
        Self {
            client: fence::behind(self.client.clone(), &fence),
            fence,
            ..self.clone()
        }
    }
}

#[cfg(test)]
impl Connection {
    /// One over whatever answers requests.
    pub(crate) fn over(client: Client) -> Self {
        Self {
            client,
            pulses: WatchActivity::default(),
            limiter: Limiter::new(1000, 1000),
            skew: SkewGauge::default(),
            server: "https://api.test".to_owned(),
            authorities: vec![b"an authority".to_vec()],
            kubeconfig: PathBuf::new(),
            print: 0,
            fence: Fence::default(),
            lease: LeaseName::default(),
        }
    }
}
