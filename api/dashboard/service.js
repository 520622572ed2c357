// Asking the service that this page came from.

const KEY = "seqplan-token";
const PATIENCE_MS = 15_000;

/** An answer that is an error; status 0: the token cannot be sent at all. */
export class RequestError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** The token, for this tab and this session only. */
export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

async function answer(path) {
  const headers = { Accept: "application/json, text/plain, application/problem+json" };
  const known = token.get();
  if (known !== null) {
    if (!/^[\x21-\x7e]+$/.test(known)) throw new RequestError(401, "no token has such characters");
    headers.Authorization = `Bearer ${known}`;
  }
  const response = await fetch(new URL(path, document.baseURI), {
    headers,
    cache: "no-store",
    credentials: "same-origin", // a proxy before the service may know the browser by a cookie
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
  if (response.ok) return response;
  let detail = `${response.status} ${response.statusText}`;
  try {
    detail = String((await response.json()).detail ?? detail);
  } catch {
    // not a problem of the service: the status has to do
  }
  throw new RequestError(response.status, detail);
}

/** The JSON at a path below the service. */
export const json = async (path) => (await answer(path)).json();

/** The text at a path below the service. */
export const text = async (path) => (await answer(path)).text();

/** The path of a job, or of something below it. */
export const ofJob = (job, ...rest) =>
  ["v1", "jobs", encodeURIComponent(job), ...rest.map(encodeURIComponent)].join("/");
