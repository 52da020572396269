/* The functions of MPI that Lockstep calls, behind plain C types: what MPI_Comm, MPI_Request and
 * the constants are differs between libraries, so only the library's own compiler knows. Every
 * function returns an MPI error code, 0 for success. Calls are serialized by the caller. */
#include <mpi.h>
#include <stdlib.h>

static MPI_Comm world = MPI_COMM_NULL;

/* A tag that no message has, to make progress with. */
enum { UNUSED_TAG = 32767 };

int lockstep_mpi_init(int *rank, int *size, int *is_threaded) {
    int provided = 0;
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    if (code == MPI_SUCCESS) code = MPI_Comm_dup(MPI_COMM_WORLD, &world);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) code = MPI_Comm_rank(world, rank);
    if (code == MPI_SUCCESS) code = MPI_Comm_size(world, size);
    *is_threaded = provided >= MPI_THREAD_SERIALIZED;
    return code;
}

int lockstep_mpi_finalize(void) {
    int code = MPI_Comm_free(&world);
    int last = MPI_Finalize();
    return code == MPI_SUCCESS ? last : code;
}

/* The library's name and version; text of at most size bytes, with its length. */
int lockstep_mpi_version(char *text, int size, int *length) {
    char whole[MPI_MAX_LIBRARY_VERSION_STRING];
    int code = MPI_Get_library_version(whole, length);
    if (code != MPI_SUCCESS) return code;
    if (*length > size) *length = size;
    for (int at = 0; at < *length; at++) text[at] = whole[at];
    return code;
}

/* What an error code means; text of at most size bytes, with its length. */
int lockstep_mpi_error(int error, char *text, int size, int *length) {
    char whole[MPI_MAX_ERROR_STRING];
    int code = MPI_Error_string(error, whole, length);
    if (code != MPI_SUCCESS) return code;
    if (*length > size) *length = size;
    for (int at = 0; at < *length; at++) text[at] = whole[at];
    return code;
}

int lockstep_mpi_bcast(void *bytes, int length) {
    return MPI_Bcast(bytes, length, MPI_BYTE, 0, world);
}

/* Starts to send; the bytes must stay until lockstep_mpi_test says that the request is done. */
int lockstep_mpi_isend(const void *bytes, int length, int to, int tag, void **request) {
    MPI_Request *own = malloc(sizeof *own);
    if (own == NULL) return MPI_ERR_NO_MEM;
    int code = MPI_Isend(bytes, length, MPI_BYTE, to, tag, world, own);
    if (code != MPI_SUCCESS) {
        free(own);
        return code;
    }
    *request = own;
    return code;
}

/* Looks for a message; the one found can then be received by nobody else. */
int lockstep_mpi_probe(int from, int tag, int *is_there, int *length, void **message) {
    MPI_Message found = MPI_MESSAGE_NULL;
    MPI_Status status;
    int code = MPI_Improbe(from, tag, world, is_there, &found, &status);
    if (code != MPI_SUCCESS || !*is_there) return code;
    code = MPI_Get_count(&status, MPI_BYTE, length);
    MPI_Message *own = malloc(sizeof *own);
    if (own == NULL) return MPI_ERR_NO_MEM;
    *own = found;
    *message = own;
    return code;
}

/* Starts to receive a message that a probe found, and frees its handle. */
int lockstep_mpi_irecv(void *bytes, int length, void *message, void **request) {
    MPI_Request *own = malloc(sizeof *own);
    if (own == NULL) return MPI_ERR_NO_MEM;
    int code = MPI_Imrecv(bytes, length, MPI_BYTE, (MPI_Message *)message, own);
    free(message);
    if (code != MPI_SUCCESS) {
        free(own);
        return code;
    }
    *request = own;
    return code;
}

/* Whether a request is done; frees it then. */
int lockstep_mpi_test(void *request, int *is_done) {
    int code = MPI_Test((MPI_Request *)request, is_done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS || *is_done) free(request);
    return code;
}

/* Lets the library move what is in flight. */
int lockstep_mpi_progress(void) {
    int is_there;
    return MPI_Iprobe(MPI_ANY_SOURCE, UNUSED_TAG, world, &is_there, MPI_STATUS_IGNORE);
}
