/**
 * The key of a business operation, `invoice:order-42`: the same parts always give
 * the same key, so that a program which crashed and starts again repeats its
 * request instead of making another one. It is the key that client.Key makes in
 * Go, up to the 255 bytes that a gateway takes.
 */
export function operationKey(operation: string, ...parts: string[]): string {
  return [operation, ...parts].map(encoded).join(":");
}

/**
 * A random key, for an operation that has no name of its own. Make it once, keep
 * it before the first try, and use it for all of them. (A page has randomUUID if it
 * comes by https, or from localhost.)
 */
export const newKey = (): string => crypto.randomUUID();

/** The header's form of a key, which holds any key. */
export const quoted = (key: string): string => `"${key.replace(/["\\]/g, "\\$&")}"`;

// Plain are letters, digits and -._~/@+=; the rest is percent-encoded.
function encoded(part: string): string {
  return encodeURIComponent(part)
    .replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`)
    .replace(/%(2F|40|2B|3D)/g, decodeURIComponent);
}
