//! Listings that come page by page: each waits its turn, and no listing is endless.
//! It must not know what is listed.

use std::error::Error;

use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_ec2::operation::RequestId;
use aws_smithy_async::future::pagination_stream::PaginationStream;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;

use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::AwsError;

/// Entries of a page of most listings of EC2, the most that it gives.
pub(crate) const PAGE: i32 = 1000;
/// Pages of one listing at most: 500,000 of anything is more than an account may have.
const PAGES: usize = 500;

/// Takes every page of a listing. One that does not end is a fault: what is only a part of all
/// there is must not be taken for the whole.
pub(crate) async fn each<T, E>(
    account: &AwsClients,
    operation: &'static str,
    mut pages: PaginationStream<Result<T, SdkError<E, HttpResponse>>>,
    mut take: impl FnMut(T),
) -> Result<(), AwsError>
where
    E: ProvideErrorMetadata + Error + 'static,
    SdkError<E, HttpResponse>: RequestId,
{
    for _ in 0..PAGES {
        account.buckets.read.turn().await;
        let Some(page) = pages.next().await else {
            return Ok(());
        };
        take(page.map_err(|error| AwsError::new(operation, error))?);
    }
    Err(AwsError::silent(operation, "the listing does not end"))
}
