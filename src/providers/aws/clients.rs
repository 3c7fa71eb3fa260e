//! SDK clients of an account and region, with rate limits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_config::sts::AssumeRoleProvider;
use aws_config::{AppName, BehaviorVersion, Region, SdkConfig};
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;
use tokio::sync::Mutex;

use crate::model::capacity_scope::CapacityScope;
use crate::model::cluster::Cluster;
use crate::outbound::clock_skew::SkewGauge;
use crate::outbound::rate_limiter::Limiter;
use crate::providers::aws::interceptor::Recorder;

/// Timeout of one call with all retries. Callers wait a little longer.
const CALL: Duration = Duration::from_secs(60);
/// Timeout of one attempt.
const ATTEMPT: Duration = Duration::from_secs(20);
/// Timeout of one receive call. SQS waits up to 20 s.
const POLL: Duration = Duration::from_secs(30);
/// Timeout of a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Attempts per call. The engine retries later after a new decision.
const ATTEMPTS: u32 = 3;

/// Application name in each request, visible in CloudTrail.
const APP: &str = "outrigger";

/// Identifies an account and region.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AccountKey {
    /// Region.
    pub(crate) region: String,
    /// Assumed role. `None` uses the identity of the daemon.
    pub(crate) role: Option<String>,
}

impl AccountKey {
    /// Account and region of a cluster's instances.
    pub(crate) fn from_cluster(cluster: &Cluster) -> Self {
        Self { region: cluster.region.clone(), role: cluster.role_arn.clone() }
    }

    /// Returns whether both are the same region and account, regardless of the role. EC2 rate
    /// limits and queues are shared per account and region. The account of the daemon's credentials
    /// is unknown here.
    pub(crate) fn is_same_account_and_region(&self, other: &Self) -> bool {
        let [this, other] =
            [self, other].map(|key| CapacityScope::from_region(&key.region, key.role.as_deref()));
        this == other
    }
}

/// Rate limits of the API, with a token bucket each. EC2 limits the requests of all callers of an
/// account and region together, so the limits here are lower. Source: EC2 developer guide, request
/// throttling: bursts of 100 requests and 20 per second for reads, fewer for writes.
#[derive(Clone, Debug)]
pub(crate) struct RateLimits {
    pub(crate) read: Limiter,
    pub(crate) fleet: Limiter,
    pub(crate) terminate: Limiter,
    pub(crate) change: Limiter,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self {
            read: Limiter::new(10, 50),
            fleet: Limiter::new(10, 100),
            terminate: Limiter::new(5, 50),
            change: Limiter::new(5, 50),
        }
    }
}

/// Configuration for EC2 calls without retries.
pub(crate) fn without_retries() -> aws_sdk_ec2::config::Builder {
    aws_sdk_ec2::config::Builder::new().retry_config(RetryConfig::disabled())
}

/// The client of an SDK crate, with this interceptor.
macro_rules! client {
    ($sdk:ident, $config:expr, $interceptor:expr) => {
        $sdk::Client::from_conf(
            $sdk::config::Builder::from($config).interceptor($interceptor).build(),
        )
    };
}

/// Clients of one account and region.
#[derive(Debug)]
pub(crate) struct AwsClients {
    pub(crate) key: AccountKey,
    pub(crate) config: SdkConfig,
    pub(crate) buckets: RateLimits,
    /// Clock skew between this host and AWS.
    pub(crate) skew: SkewGauge,
    pub(crate) ec2: aws_sdk_ec2::Client,
    pub(crate) shift: aws_sdk_arczonalshift::Client,
    pub(crate) eks: aws_sdk_eks::Client,
    pub(crate) iam: aws_sdk_iam::Client,
    pub(crate) pricing: aws_sdk_pricing::Client,
    pub(crate) sqs: aws_sdk_sqs::Client,
    pub(crate) ssm: aws_sdk_ssm::Client,
}

impl AwsClients {
    /// Creates the clients of an account and region, which assume the role if one is set. Sends
    /// nothing yet.
    pub(crate) async fn new(key: AccountKey) -> Self {
        let base = aws_config::defaults(BehaviorVersion::latest())
            .region(Region::new(key.region.clone()))
            // The adaptive retry mode is not used, because it applies one limit to all accounts of
            // the process. Each account and region has its own limits here.
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
            .timeout_config(timeouts_per_attempt(ATTEMPT))
            .load()
            .await;
        let base = with_app_name(base);
        let config = match &key.role {
            None => base,
            Some(role) => {
                let provider = AssumeRoleProvider::builder(role)
                    .configure(&base)
                    .session_name("outrigger")
                    .region(Region::new(key.region.clone()))
                    .build()
                    .await;
                let provider = SharedCredentialsProvider::new(provider);
                base.into_builder().credentials_provider(provider).build()
            }
        };
        Self::from_config(key, config)
    }

    /// Creates clients with this configuration.
    pub(crate) fn from_config(key: AccountKey, config: SdkConfig) -> Self {
        let config = with_app_name(config);
        let skew = SkewGauge::default();
        let recorder = Recorder { region: key.region.clone(), skew: skew.clone() };
        let pricing = aws_sdk_pricing::config::Builder::from(&config)
            .region(Region::new(pricing_region(&key.region)));
        Self {
            buckets: RateLimits::default(),
            ec2: client!(aws_sdk_ec2, &config, recorder.clone()),
            shift: client!(aws_sdk_arczonalshift, &config, recorder.clone()),
            eks: client!(aws_sdk_eks, &config, recorder.clone()),
            iam: client!(aws_sdk_iam, &config, recorder.clone()),
            pricing: aws_sdk_pricing::Client::from_conf(
                pricing.interceptor(recorder.clone()).build(),
            ),
            sqs: aws_sdk_sqs::Client::from_conf(
                aws_sdk_sqs::config::Builder::from(&config)
                    .interceptor(recorder.clone())
                    .timeout_config(timeouts_per_attempt(POLL))
                    .build(),
            ),
            ssm: client!(aws_sdk_ssm, &config, recorder),
            config,
            skew,
            key,
        }
    }
}

fn with_app_name(config: SdkConfig) -> SdkConfig {
    let mut config = config.into_builder();
    config.set_app_name(AppName::new(APP).ok());
    config.build()
}

fn timeouts_per_attempt(attempt: Duration) -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT)
        .operation_attempt_timeout(attempt)
        .operation_timeout(CALL)
        .build()
}

/// Returns the region whose pricing API has the prices of a region. The pricing API is available
/// only in few regions. Source: spec/aws.md §4.8.
fn pricing_region(region: &str) -> &'static str {
    match region.split('-').next() {
        Some("ap") => "ap-south-1",
        Some("cn") => "cn-northwest-1",
        Some("eu") => "eu-central-1",
        _ => "us-east-1",
    }
}

/// All accounts and regions of clusters, each with shared clients.
#[derive(Debug, Default)]
pub(crate) struct Accounts(Mutex<BTreeMap<AccountKey, Arc<AwsClients>>>);

impl Accounts {
    /// Creates a set with these clients.
    #[cfg(test)]
    pub(crate) fn from_clients(account: AwsClients) -> Self {
        let known = BTreeMap::from([(account.key.clone(), Arc::new(account))]);
        Self(Mutex::new(known))
    }

    /// Returns the clients of an account and region.
    pub(crate) async fn get(&self, key: &AccountKey) -> Arc<AwsClients> {
        let mut known = self.0.lock().await;
        if let Some(account) = known.get(key) {
            return account.clone();
        }
        let mut account = AwsClients::new(key.clone()).await;
        if let Some(neighbour) = known.values().find(|it| it.key.is_same_account_and_region(key)) {
            account.buckets = neighbour.buckets.clone();
        }
        let account = Arc::new(account);
        known.insert(key.clone(), account.clone());
        account
    }
}

#[cfg(test)]
mod tests {
    use super::{AccountKey, Accounts, pricing_region};

    fn key(region: &str, role: Option<&str>) -> AccountKey {
        AccountKey {
            region: region.to_owned(),
            role: role.map(|role| format!("arn:aws:iam::{role}")),
        }
    }

    #[tokio::test]
    async fn roles_of_one_account_and_region_share_rate_limits() {
        let accounts = Accounts::default();
        let one = accounts.get(&key("eu-west-1", Some("1:role/a"))).await;
        for (region, role, is_same) in [
            ("eu-west-1", Some("1:role/b"), true),
            ("eu-west-1", Some("2:role/a"), false),
            ("eu-west-2", Some("1:role/a"), false),
            ("eu-west-1", None, false),
        ] {
            let other = accounts.get(&key(region, role)).await;
            let is_one = one.buckets.read.shares_tokens_with(&other.buckets.read);
            assert_eq!(is_one, is_same, "{region} {role:?}");
        }
    }

    #[test]
    fn price_lists_are_read_from_a_serving_region() {
        for (region, expect) in [
            ("us-west-2", "us-east-1"),
            ("eu-north-1", "eu-central-1"),
            ("ap-southeast-2", "ap-south-1"),
            ("cn-north-1", "cn-northwest-1"),
            ("sa-east-1", "us-east-1"),
        ] {
            assert_eq!(pricing_region(region), expect, "{region}");
        }
    }
}
